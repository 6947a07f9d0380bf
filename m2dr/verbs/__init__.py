"""One file per command; joins the rooms and reads as the path."""
