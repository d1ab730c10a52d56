"""A small project of Django's, as a user has one."""
