"""The application: builds every service, starts and stops them in order, connects them."""
