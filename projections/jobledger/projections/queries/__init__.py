"""What a projection can be asked: lists, counts and rankings, as frozen Structs ready for JSON."""
