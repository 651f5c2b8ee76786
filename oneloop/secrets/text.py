"""What is a secret in a text, whoever wrote it: tokens in the formats of services, passwords of URLs, and what follows
the name of a secret, as in `password='...'`, `"api_key": "..."`, `?token=...` and `--hub_token ...`."""

import re
from functools import cache, lru_cache

from .names import Verdict, hides, reads_like_words, verdict

# Names that are too common to decide anything elsewhere than in a URL.
_IN_QUERIES = frozenset(
    "key code sig signature x-amz-signature x-goog-signature x-amz-credential awsaccesskeyid".split()
)
# Words that may follow an option in a sentence about it.
_PROSE = frozenset(
    "a an and are as at be but by can cannot does expected expects for from given has have if in into is it may must "
    "needs not of on only or out requires should that the then to twice unless was when which will with without".split()
)
_LITERALS = frozenset(("none", "null", "true", "false", "...", "nan"))


@cache
def _formats() -> re.Pattern[str]:
    """Tokens in the formats of services. Compiled when they are needed: importing oneloop should take no time."""
    tokens = (
        r"hf_[A-Za-z0-9]{20,}|api_org_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{20,}|[srp]k_(?:live|test)_[A-Za-z0-9]{10,}",
        r"whsec_[A-Za-z0-9+/=]{16,}|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}",
        r"gl(?:pat|ptt|dt|rt|cbt)-[A-Za-z0-9_-]{20,}",
        r"A[KS]IA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}|GOCSPX-[A-Za-z0-9_-]{20,}",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,}|xapp-[A-Za-z0-9-]{10,}|npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}",
        r"dckr_pat_[A-Za-z0-9_-]{20,}|do[opr]_v1_[a-f0-9]{40,}|dapi[a-f0-9]{32}|ATATT3[A-Za-z0-9_=-]{20,}",
        r"hv[sb]\.[A-Za-z0-9_-]{20,}|lin_api_[A-Za-z0-9]{20,}|ntn_[A-Za-z0-9]{20,}|shp(?:at|ss|ca)_[a-fA-F0-9]{20,}",
        r"nvapi-[A-Za-z0-9_-]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|pcsk_[A-Za-z0-9_]{20,}|xai-[A-Za-z0-9]{20,}",
        r"tvly-[A-Za-z0-9-]{20,}|SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}|AGE-SECRET-KEY-1[0-9A-Z]{20,}",
        r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]*",
        r"\d{8,10}:AA[A-Za-z0-9_-]{33}",
    )
    return re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(tokens)})")


@cache
def _private_key() -> re.Pattern[str]:
    return re.compile(
        r"-----BEGIN (?P<kind>[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL
    )


@cache
def _headers() -> re.Pattern[str]:
    """`Bearer ...` and `Basic ...`; what follows has to look like a token, since both are words of English."""
    return re.compile(
        r"\b(?P<kind>Bearer|Basic|Digest)(?P<space> +|%20)(?P<value>[A-Za-z0-9._~+/=-]{8,})", re.IGNORECASE
    )


@cache
def _user_of_url() -> re.Pattern[str]:
    """scheme://user:password@host. A password may have an @, and a slash if it is not mistaken for a port's. The
    lengths are bounded, or a long text would take the square of its length."""
    return re.compile(
        r"(?P<scheme>\b[a-z][a-z0-9+.-]{1,30}:/{1,2})"  # one slash in a path
        r"(?P<user>[^\s/:@?#'\"<>]{0,200})"
        r"(?P<password>:(?:[^\s/?#'\"<>]{0,500}|(?!\d+/)[^\s/@?#'\"<>]{1,500}/[^\s@'\"<>]{0,500}))?@",
        re.IGNORECASE,
    )


@cache
def _hooks() -> re.Pattern[str]:
    """Addresses to which anybody who knows them can write."""
    return re.compile(
        r"(?P<place>hooks\.slack\.com/(?:services|workflows)/|discord(?:app)?\.com/api/webhooks/|"
        r"(?<![a-z0-9-])[a-z0-9-]{1,80}\.webhook\.office\.com/webhookb2/|oapi\.dingtalk\.com/robot/send\?access_token=|"
        r"api\.telegram\.org/bot)[^\s'\"<>]+",
        re.IGNORECASE,
    )


@cache
def _names() -> re.Pattern[str]:
    """A name before its value: `name=`, `"name": `."""
    return re.compile(
        r"(?:(?P<line>^[ \t>+-]*)|(?<![A-Za-z0-9_]))"
        r"(?P<name>[A-Za-z_](?:[A-Za-z0-9_.-]{0,80}[A-Za-z0-9_])?)"
        r"(?P<closed>\\?[\"'])?(?P<sign>[ \t]*(?:=>|[:=])[ \t]*)",
        re.MULTILINE,
    )


@cache
def _values() -> re.Pattern[str]:
    """A value after its name: in quotes, a list, or a word."""
    quoted = r"[bBrRuU]{0,2}(?P<quote>\\?[\"'])(?P<inner>(?:(?!(?P=quote))(?:\\.|[^\\]))*)(?:(?P=quote)|\Z)"
    listed = r"[\[(][^\[\]()]*[\])]"
    return re.compile(
        rf"{quoted}|{listed}|(?:(?:Bearer|Basic|Digest|Token)[ ]+)?[^\s,;&'\"<>\\)\]}}]+", re.IGNORECASE | re.DOTALL
    )


@cache
def _options() -> re.Pattern[str]:
    """--name value, as a command line or a list of its words."""
    return re.compile(
        r"(?P<before>(?<![\w-])--?(?P<name>[A-Za-z][\w.-]+)(?P<gap>['\"]?,?[ \t]+['\"]?))"
        r"(?P<value>[^\s,;'\"<>\])-][^\s,'\"<>\]]*)"
    )


def mask(name: object) -> str:
    """What is written instead of a secret."""
    word = re.sub(r"[^\w.-]", "_", str(name).upper())
    return f"<{word}>"


def scrub(text: str) -> str:
    """The text without what is a secret by its format or by the name before it."""
    if len(text) < 4:
        return text
    return _scrub_short(text) if len(text) <= 200 else _scrub(text)


def _scrub(text: str) -> str:
    if "-----BEGIN" in text:
        text = _private_key().sub("<PRIVATE_KEY>", text)
    if "/" in text:
        text = _hooks().sub(r"\g<place><WEBHOOK>", text)
    if ":/" in text:
        text = _user_of_url().sub(_without_user, text)
    if "=" in text or ":" in text:
        text = _without_named(text)
    if "-" in text:
        text = _options().sub(_without_argument, text)
    text = _formats().sub("<TOKEN>", text)
    return _headers().sub(_without_header, text)


_scrub_short = lru_cache(maxsize=1024)(_scrub)  # each save writes the same arguments


def passwords(text: str) -> list[str]:
    """The passwords of the URLs in a text."""
    if ":/" not in text:
        return []
    return [found["password"][1:] for found in _user_of_url().finditer(text) if found["password"]]


def _without_user(found: re.Match[str]) -> str:
    scheme, user, password = found["scheme"], found["user"], found["password"]
    if password is None:  # git@github.com, or a token alone
        return f"{scheme}<TOKEN>@" if looks_random(user) else found[0]
    return f"{scheme}{'<TOKEN>' if looks_random(user) else user}:<PASSWORD>@" if len(password) > 1 else found[0]


def _without_named(text: str) -> str:
    """Hide the values of names that are those of secrets."""
    parts, done, place = [], 0, 0  # what is written, and up to where; where to go on
    while (name := _names().search(text, place)) is not None:
        place = name.end()
        value = None
        if verdict(name["name"]) or name["name"].lower() in _IN_QUERIES:
            value = _values().match(text, place)
        if value is None or not _is_hidden(text, name, value):
            continue
        quote = value["quote"] or ""
        parts += [text[done:place], quote, mask(name["name"]), quote]
        done = place = value.end()
    return "".join((*parts, text[done:])) if parts else text


def _is_hidden(text: str, name: re.Match[str], value: re.Match[str]) -> bool:
    """Whether a value is a secret: not so in "the token: see below", unlike in `X-Api-Key: ...` and in YAML."""
    if ":" in name["sign"] and not name["closed"] and not value["quote"] and "-" not in name["name"]:
        rest = text[value.end() :].partition("\n")[0]
        if (name["line"] is None or rest.strip()) and reads_like_words(value[0].rstrip(".")):
            return False
    if name["name"].lower() in _IN_QUERIES and not verdict(name["name"]):
        is_query = name["sign"] == "=" and text[: name.start("name")][-1:] in ("?", "&")
        return is_query and not value[0].startswith("<") and not reads_like_words(value[0])
    is_quoted = value["quote"] is not None
    return _is_value(name["name"], value["inner"] if is_quoted else value[0], is_quoted)


def _is_value(name: str, value: str, is_quoted: bool) -> bool:
    """Whether what follows the name of a secret is one, and neither empty, a number, nor hidden already."""
    if value.startswith("<") or (not is_quoted and value.lower() in _LITERALS) or not value.strip("*. "):
        return False
    if not is_quoted and value[:1] in "[(":
        return verdict(name) > Verdict.MAYBE and any(c.isalpha() for c in value)
    if not is_quoted and value.replace(".", "", 1).isdigit():
        return verdict(name) is Verdict.ALL
    return hides(name, value)


def _without_argument(found: re.Match[str]) -> str:
    name, value = found["name"], found["value"]
    in_list = found["gap"].strip() != ""
    if not in_list and value.lower().strip(".,:;()") in _PROSE:
        return found[0]
    return f"{found['before']}{mask(name)}" if _is_value(name, value, is_quoted=in_list) else found[0]


def _without_header(found: re.Match[str]) -> str:
    value = found["value"]
    is_token = any(c.isdigit() for c in value) or value.endswith("=") or len(value) >= 20
    return f"{found['kind']}{found['space']}<TOKEN>" if is_token else found[0]


def looks_random(text: str) -> bool:
    """Whether this is one long word of letters and digits, as keys are, and no path, name or number: paged_adamw_32bit
    has short words alone."""
    longest = max(re.findall(r"[A-Za-z0-9]+", text), key=len, default="")
    one = re.fullmatch(r"[A-Za-z0-9+=_-]{20,}", text) is not None
    return one and len(longest) >= 16 and re.search(r"\d", longest) is not None and not longest.isdigit()
