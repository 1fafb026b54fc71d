"""The documentation site: pages that are written here, and pages that are made of the code."""
