"""What rooms hand to each other: plain data that knows neither torch, numpy nor files."""
