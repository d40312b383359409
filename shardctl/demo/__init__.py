"""The tour: the whole story on a throw-away fleet."""
