"""The certificate: cases, exact distributions by enumeration, and the checks that compare them."""
