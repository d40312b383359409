// pgjdbc needs prepareThreshold=0 through a pooler without prepared statements.
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

class WithJdbc {
    static final Set<String> FENCED = Set.of("42P01", "3F000", "42501");
    static final Map<String, Connection> connections = new HashMap<>();

    static Connection connect(String[] given, String alias) throws SQLException {
        if (!connections.containsKey(alias)) {
            String url = "jdbc:postgresql://" + given[0] + ":" + given[1] + "/" + alias;
            String options = "?prepareThreshold=0&user=" + given[2];
            connections.put(alias, DriverManager.getConnection(url + options));
        }
        return connections.get(alias);
    }

    static void insert(Connection connection, String table, long token) throws SQLException {
        String statement = "INSERT INTO " + table + " (token) VALUES (?)";
        try (PreparedStatement prepared = connection.prepareStatement(statement)) {
            prepared.setLong(1, token);
            prepared.executeUpdate();
        }
    }

    public static void main(String[] given) throws Exception {
        String node = "a";
        for (long token = 1; System.in.available() == 0; token++) {
            insert(connect(given, "shard2"), "writes", token);
            System.out.println("2 " + token);
            long until = System.currentTimeMillis() + 20000;
            while (true) {
                Connection connection = connect(given, given[3] + "_" + node);
                try {
                    insert(connection, "shard3.writes", token);
                    break;
                } catch (SQLException error) {
                    if (!FENCED.contains(error.getSQLState())
                            || System.currentTimeMillis() > until) {
                        throw error;
                    }
                }
                Thread.sleep(10);
                String owner = "SELECT node FROM shardctl.map WHERE shard = 3";
                try (PreparedStatement asked = connection.prepareStatement(owner);
                        ResultSet found = asked.executeQuery()) {
                    found.next();
                    node = found.getString(1);
                }
            }
            System.out.println("3 " + token);
            Thread.sleep(10);
        }
    }
}
