"""The node agent: reads the machine into one immutable snapshot.

Publishes it, and applies what follows from it.
"""
