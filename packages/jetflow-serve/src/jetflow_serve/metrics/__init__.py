"""What an engine counts, how the numbers reach the server's process, and under which names."""
