"""Tables of the status page that have a subject of their own."""
