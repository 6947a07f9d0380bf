"""One file per command, in a room per kind of work; joins the rooms below and reads as the path."""
