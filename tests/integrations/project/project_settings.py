"""The project's settings; the test that starts it says which database and which source."""

import json
import os

try:
    import MySQLdb  # noqa: F401
except ImportError:
    import pymysql

    # PyMySQL in the place of mysqlclient, as its own documentation has it, with the version that Django asks for.
    pymysql.version_info = (2, 2, 7, "final", 0)
    pymysql.install_as_MySQLdb()

SECRET_KEY = "books"
INSTALLED_APPS = ["fencelock.integrations.django", "books", *os.environ.get("BOOKS_APPS", "").split()]
DATABASES = {"default": json.loads(os.environ.get("BOOKS_DATABASE", "{}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
if "BOOKS_SOURCE" in os.environ:
    FENCELOCK = {"SOURCE": os.environ["BOOKS_SOURCE"]}
