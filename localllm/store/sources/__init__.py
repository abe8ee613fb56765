"""Where models come from: each module turns a reference into a plan of files to fetch."""
