"""The project's settings; the test that starts it says which database and which source."""

import json
import os

SECRET_KEY = "books"
INSTALLED_APPS = ["fenceline.integrations.django", "books"]
DATABASES = {"default": json.loads(os.environ.get("BOOKS_DATABASE", "{}"))}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
USE_TZ = True
if "BOOKS_SOURCE" in os.environ:
    FENCELINE = {"SOURCE": os.environ["BOOKS_SOURCE"]}
