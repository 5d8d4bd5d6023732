"""Server-side apply and what takes its place: requests, answers, whose field is whose."""
