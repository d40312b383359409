"""A test fleet for applications: real servers, their own topology and migrations, by pytest."""
