"""The same training many times, one thing changed at a time, measured side by side."""
