"""An app with migrations, which protect its table; only the tests of migrations install it."""
