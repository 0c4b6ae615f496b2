"""What the bench and its workers both know: messages, the pipe, plain records."""
