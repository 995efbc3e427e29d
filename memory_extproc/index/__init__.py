"""One owner's memories by their words and by what stands around them. Pure: no I/O, no clock."""
