"""Two kinds of databases: `default` has the accounts, and the shards have everything else."""

import os
from pathlib import Path

from shardctl.contrib.django import shard_databases

HERE = Path(__file__).parent
TOPOLOGY = Path(os.environ.get("SHARDCTL_TOPOLOGY", HERE / "topology.yaml")).absolute()

DATABASES = {
    "default": {  # who signs in gives a name, and no shard follows from that
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": TOPOLOGY.parent / "accounts.sqlite3",
        "OPTIONS": {"timeout": 20, "init_command": "PRAGMA journal_mode=WAL"},
    },
    **shard_databases(TOPOLOGY),
}
DATABASE_ROUTERS = ["shardctl.contrib.django.ShardRouter"]
AUTH_USER_MODEL = "photos.Account"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.staticfiles",
    "shardctl.contrib.django",
    "photos",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
# With this key everybody can sign a session: a public server needs one of its own.
SECRET_KEY = os.environ.get("PHOTOS_SECRET_KEY", "only for this machine")
ALLOWED_HOSTS = ["127.0.0.1", "localhost", "testserver"]
LOGIN_URL, LOGIN_REDIRECT_URL, LOGOUT_REDIRECT_URL = "sign_in", "feed", "sign_in"

ROOT_URLCONF = "photos.views"
PROCESSORS = (
    "django.template.context_processors.request",
    "django.contrib.auth.context_processors.auth",
)
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True,
              "OPTIONS": {"context_processors": PROCESSORS}}]  # fmt: skip
STATIC_URL = "static/"
USE_TZ, TIME_ZONE, USE_I18N = True, "UTC", False
QUIET = {"django.server": {"level": "ERROR"}}  # the page asks often
LOGGING = {"version": 1, "disable_existing_loggers": False, "loggers": QUIET}
