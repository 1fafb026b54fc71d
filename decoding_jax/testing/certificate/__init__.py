"""The certificate: its cases, exact distributions by enumeration, and the comparisons."""
