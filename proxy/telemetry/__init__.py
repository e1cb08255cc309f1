"""What the server says about itself: metrics and one log line a request."""
