"""What adding jobs is made of: tasks as workers announced them, and streams of appends."""
