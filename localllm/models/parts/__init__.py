"""What architecture files are made of: checked reads of a file, rope, attention, feed-forward and experts."""
