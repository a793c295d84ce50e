"""The demonstration, and the harness of real clusters, workload and checks that it shares with the tests."""
