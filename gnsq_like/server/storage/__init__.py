"""Files that survive a crash: the disk queue, and small files that are replaced as a whole."""
