"""The same work on every engine and peer: what asymmetric padding costs beyond the convolution itself."""
