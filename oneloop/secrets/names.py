"""Which names are those of secrets: openai_key, hub_tokens, smtp_pass, but not sort_key, max_tokens, forward_pass.

A name is split into words (snake_case, camelCase, and joined ones such as apitoken), and the words decide.
"""

import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cache, lru_cache
from typing import Any


class Verdict(IntEnum):
    """How far a name makes its value a secret."""

    NO = 0
    MAYBE = 1  # a text that does not read like words: acme_key="9f86d081", but not acme_key="input_ids"
    TEXT = 2  # any text, alone or in a container; but no number: hub_tokens, basic_auth
    ALL = 3  # numbers too: a password may be one


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These make a secret, wherever in a name they are.
_SECRET = _words(
    "secret secrets pwd pw psk passkey passcode cred creds apikey apikeys authorization bearer cookie cookies webhook "
    "webhooks jwt jwts dsn totp otp connstr"
)
_IN_WORDS = ("password", "passwd", "passphrase", "credential")  # also as a part of a word: dbpassword, htpasswd
_NUMERIC = _SECRET - _words("authorization bearer cookie cookies webhook webhooks dsn connstr")
# What keys and tokens are for: the secret ones.
_KINDS = _words(
    "api access private account encryption signing sign ssh auth oauth license service deploy deployment storage "
    "shared secret client app bot master admin root session refresh bearer personal server db database sql smtp imap "
    "mail email ftp sftp ldap vpn wifi proxy http https basic registry repo ci webhook subscription activation fernet "
    "hmac aes rsa gpg pgp tls ssl jwt sas hub login"
)
# Whose keys and tokens they are.
_SERVICES = _words(
    "openai anthropic claude cohere mistral groq gemini deepseek perplexity openrouter together fireworks replicate "
    "xai bedrock cerebras nvidia ngc azure aws gcp gcs google vertex minio cloudflare digitalocean heroku vercel "
    "netlify hf huggingface github gh gitlab git bitbucket jira atlassian confluence notion airtable wandb comet "
    "neptune mlflow clearml swanlab dagshub tensorboard trackio aim dvc databricks snowflake kaggle slack discord "
    "telegram twilio sendgrid mailgun stripe paypal sentry datadog newrelic pagerduty grafana pinecone qdrant "
    "weaviate milvus chroma mongo mongodb postgres postgresql mysql redis elastic elasticsearch kafka rabbitmq "
    "supabase firebase okta vault docker dockerhub quay npm pypi roboflow labelbox serper serpapi tavily dashscope "
    "qwen zhipu moonshot baidu qianfan tencent aliyun volcengine huawei modelscope aistudio dropbox"
)
_OWNERS = _KINDS | _SERVICES
_PLURAL = _OWNERS - _words("sql mail email http https basic app bot sign root server client registry repo login")

# A token is a secret unless these words say that it is a piece of text, or how it is treated.
_TEXT_TOKENS = _words(
    "pad padding eos bos unk sep cls mask image img audio video vision visual speech text decoder encoder start end "
    "stop begin special additional extra new next first last max min per prompt response instruction assistant tool "
    "boi eoi boa eoa bov eov boc eoc sos eot think thinking query document doc class target source label chat message "
    "role space word sub input output suffix prefix middle fill blank newline mem memory placeholder separator latent "
    "register reg patch pixel frame grid row col column question answer context codec acoustic semantic phoneme char "
    "byte num number n current cur prev previous final single each any every dummy ignore ignored forced ban banned "
    "bad good draft accepted rejected chosen reward score value position pos lang language tgt src global local slice "
    "crop thumbnail scale box loc point bbox time timestamp motion action state object region segment sentence span "
    "entity event speaker music noise wave gist summary pool pooling distillation dist soft virtual by of add use "
    "with is has keep drop remove include exclude return cached vocab ids type in out no all to cross latents step "
    "delay depth temporal spatial duration silence break pause emotion style task head tail left right central center "
    "inner outer main aux auxiliary expert router ctc dom empty coarse phone delimiter line group presence python "
    "tile td iou hq grd infer"
)
_ROLES = _words("user system bot")  # of a chat, or of an account
# A key of these is a name or a place, and so is one that is followed by any of _ABOUT.
_PLAIN_KEYS = _words(
    "public label labels sort primary foreign dict text cache group index column field state config partition shard "
    "order join hash id name reward weight data feature model file object image img audio video prompt query response "
    "answer question input inputs output outputs metric metrics score target source src tgt dst loss batch mask "
    "attention value values json yaml lookup search map mapping param parameter params layer module block tensor node "
    "edge graph row record sample example item entry list set parent child default current new old prev next first "
    "last type kind class category tag topic event log time timestamp date step epoch seed random rng prng dropout "
    "init noise sampling train eval test val validation dataset split kv kwarg kwargs arg args attr attribute option "
    "setting env monitor best ckpt checkpoint message messages chat role content conversation conversations tool "
    "tools system chosen rejected completion context document doc passage title body caption url link path q k v head "
    "unique composite routing idempotency dedup merge match filter min max hot short arrow function sub length len "
    "size count num which any each by per on word token tokens axis counter create dim layout norm pattern previous "
    "projection stage to"
)
_PLAIN_PASSES = _words(
    "forward backward one two three single double first second third last final multi low high band all extra "
    "training train eval evaluation full by max min num n per each data every warmup cleanup optimization optimizer "
    "compiler fx graph fusion quantization quant is did must will should no does can current this next prev inference "
    "sampling planning"
)
_ABOUT = _words(
    "file files filename path paths dir directory folder name names env var variable type types kind length len size "
    "count column columns field fields format algorithm alg issuer audience expiry expires expiration ttl timeout "
    "lifetime url urls uri endpoint host port method mode scheme provider enabled required policy prefix suffix "
    "manager class backend rotation age limit usage rate index hint prompt regex pattern detection accuracy precision "
    "recall f loss score"
)
_HIDDEN_URLS = _words("webhook webhooks sas dsn signed presigned")  # here the URL is the secret
# Two words that follow each other.
_PAIRS = frozenset(
    f"{first} {second}"
    for firsts, seconds in (
        ("connection conn", "string str strings"),
        ("auth", "header headers string code data info value values params config"),
        ("sas", "url urls uri signature string"),
        ("signed presigned", "url urls uri"),
        ("pass", "phrase word code"),
        ("seed recovery backup", "phrase phrases codes"),
        ("account", "json info content"),
    )
    for first in firsts.split()
    for second in seconds.split()
)
_CHINESE = ("密码", "密钥", "口令")


@cache
def _pieces() -> re.Pattern[str]:
    return re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


@cache
def _wordlike() -> re.Pattern[str]:
    word = r"(?:[A-Za-z]{1,16}\d{0,3}|\d{1,4})"
    return re.compile(rf"{word}(?:[_./:|-]+{word}){{0,7}}|.*\S\s\S.*", re.DOTALL)


def words_of(name: str) -> list[str]:
    """The words of a name in lower case, without its digits: openaiApiKey2 -> openai, api, key."""
    found: list[str] = []
    for part in _pieces().findall(name):
        found += _unjoined(part.lower())
    if name.isalnum() and len(found) > 1:  # APIkey, whose pieces are not its words
        whole = _unjoined(re.sub(r"\d", "", name).lower())
        return whole if len(whole) > 1 else found
    return found


def _unjoined(word: str) -> list[str]:
    """apitoken -> api, token; but monkey and compass are single words."""
    for noun in ("key", "keys", "token", "tokens", "pass", "pat", "auth", "secret", "creds", "pwd"):
        first = word.removesuffix(noun)
        if first == word or not first:
            continue
        if first in _OWNERS:
            return [first, noun]
        kind = next((kind for kind in ("api", "access", "auth", "secret", "private") if first.endswith(kind)), None)
        if kind is not None:
            return [first.removesuffix(kind), kind, noun]
    return [word]


@lru_cache(maxsize=4096)
def verdict(name: str) -> Verdict:
    """What a name says of its value."""
    if any(word in name for word in _CHINESE):
        return Verdict.ALL
    words = words_of(name)
    return max((_verdict(words, i) for i in range(len(words))), default=Verdict.NO)


def _verdict(words: list[str], i: int) -> Verdict:
    """What one word of a name says, with those around it."""
    word, before, after = words[i], words[:i], words[i + 1 :]
    if after and after[-1] in _ABOUT and not (word in _HIDDEN_URLS and after[-1] in ("url", "urls", "uri")):
        return Verdict.NO
    if word == "pw" and after:  # a point-wise layer
        return Verdict.NO
    if word in _SECRET or any(each in word and not word.endswith("less") for each in _IN_WORDS):
        is_number = word not in _SECRET or word in _NUMERIC
        return Verdict.ALL if is_number else Verdict.TEXT
    if after and f"{word} {after[0]}" in _PAIRS:
        return Verdict.TEXT
    rule = _RULES.get(word)
    return Verdict.NO if rule is None else rule(before, after)


def _key(before: list[str], after: list[str]) -> Verdict:
    if before and before[-1] in _OWNERS:
        return Verdict.TEXT
    return Verdict.NO if after or not before or before[-1] in _PLAIN_KEYS else Verdict.MAYBE


def _keys(before: list[str], after: list[str]) -> Verdict:
    return Verdict.TEXT if before and before[-1] in _PLURAL else Verdict.NO


def _token(before: list[str], after: list[str]) -> Verdict:
    if before and before[-1] in _PLURAL:
        return Verdict.TEXT
    if after or _TEXT_TOKENS.intersection(before):
        return Verdict.NO
    if not _SERVICES.intersection(before):
        if any(_is_marker(word) for word in before):
            return Verdict.NO
        if _ROLES.intersection(before):
            return Verdict.MAYBE
    return Verdict.TEXT


def _is_marker(word: str) -> bool:
    """bos, eot and the like: the beginning or the end of something."""
    return len(word) == 3 and word[:2] in ("bo", "eo", "so") and word not in _ROLES


def _pass(before: list[str], after: list[str]) -> Verdict:
    return Verdict.NO if after or (before and before[-1] in _PLAIN_PASSES) else Verdict.TEXT


def _pat(before: list[str], after: list[str]) -> Verdict:
    if after:
        return Verdict.NO
    return Verdict.TEXT if not before or before[-1] in _OWNERS else Verdict.MAYBE


def _last(before: list[str], after: list[str]) -> Verdict:
    return Verdict.NO if after else Verdict.TEXT


# Words that make a secret only in some company: what is before and after them decides.
_RULES: Mapping[str, Callable[[list[str], list[str]], Verdict]] = {
    "key": _key,
    "keys": _keys,
    "token": _token,
    "tokens": _keys,
    "pass": _pass,
    "pat": _pat,
    "pats": _keys,
    "auth": _last,
    "sas": _last,
}


def is_secret(name: Any) -> bool:
    """Whether a text of this name may be a secret: hub_token, db_password, but not pad_token, tokenizer_name."""
    return verdict(str(name)) is not Verdict.NO


def hides(name: Any, value: Any) -> bool:
    """Whether this value of this name is a secret. None, True and 0.5 never are; nor is a text without characters."""
    found = verdict(str(name))
    if found is Verdict.NO or value is None or isinstance(value, (bool, float, complex)):
        return False
    if isinstance(value, int):
        return found is Verdict.ALL
    if isinstance(value, (str, bytes, bytearray)):
        text = value if isinstance(value, str) else value.decode("latin-1")
        if found is Verdict.ALL or not text:
            return bool(text)
        is_markup = text[0] in "<[|" and text[-1] in ">]|"  # <|endoftext|>, [MASK], or a mask
        return not is_markup and (found is Verdict.TEXT or not reads_like_words(text))
    if isinstance(value, (list, tuple, set, frozenset)):
        return any(hides(name, item) for item in value)
    return found > Verdict.MAYBE


def reads_like_words(text: str) -> bool:
    """Whether this is a name of something, or a number: input_ids, eval/loss, 2024-01-31; and no 9f86d081, AbXyKqPw."""
    return _wordlike().fullmatch(text) is not None and len(re.findall(r"[a-z][A-Z]", text)) <= 2
