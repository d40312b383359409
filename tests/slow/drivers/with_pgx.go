// pgx needs its simple protocol through a pooler without prepared statements
// (version 5: QueryExecModeExec or QueryExecModeSimpleProtocol).
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
)

var connections = map[string]*pgx.Conn{}

func connect(alias string) *pgx.Conn {
	if connections[alias] == nil {
		where := fmt.Sprintf("host=%s port=%s user=%s dbname=%s", os.Args[1], os.Args[2], os.Args[3], alias)
		config, err := pgx.ParseConfig(where)
		check(err)
		config.PreferSimpleProtocol = true
		connections[alias], err = pgx.ConnectConfig(context.Background(), config)
		check(err)
	}
	return connections[alias]
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func fenced(err error) bool {
	var reported *pgconn.PgError
	if !errors.As(err, &reported) {
		return false
	}
	return reported.Code == "42P01" || reported.Code == "3F000" || reported.Code == "42501"
}

func main() {
	ended := make(chan bool)
	go func() {
		io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	node := "a"
	for token := int64(1); ; token++ {
		select {
		case <-ended:
			return
		default:
		}
		_, err := connect("shard2").Exec(context.Background(), "INSERT INTO writes (token) VALUES ($1)", token)
		check(err)
		fmt.Println(2, token)
		until := time.Now().Add(20 * time.Second)
		for {
			connection := connect(os.Args[4] + "_" + node)
			_, err = connection.Exec(context.Background(), "INSERT INTO shard3.writes (token) VALUES ($1)", token)
			if err == nil {
				break
			}
			if !fenced(err) || time.Now().After(until) {
				check(err)
			}
			time.Sleep(10 * time.Millisecond)
			check(connection.QueryRow(context.Background(), "SELECT node FROM shardctl.map WHERE shard = 3").Scan(&node))
		}
		fmt.Println(3, token)
		time.Sleep(10 * time.Millisecond)
	}
}
