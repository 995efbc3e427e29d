"""Secrets are masked in whatever people write, and nothing is that only looks a little like one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory_extproc.safety.secrets import find_secrets, iban, luhn, mask_secrets

# Made up where a checksum allows it. The parts are joined here, so that no scanner takes this file for a leak.
SECRETS = {
    "card, grouped": ("My card is {}.", "4111 1111 1111 1111"),
    "card, hyphens": ("{}", "5500-0000-0000-0004"),
    "card, no blanks": ("pay with {} please", "378282246310005"),
    "card, dots": ("{} exp 12/29", "6011.1111.1111.1117"),
    "card, no-break blanks": ("{}", "4111\u00a01111\u00a01111\u00a01111"),
    "card, full width": ("{}", "\uff14\uff11\uff11\uff11 1111 1111 1111"),
    "card, of a rarer issuer": ("the maestro card {}", "6759649826438453"),
    "iban, grouped": ("IBAN: {}, thanks", "DE89 3704 0044 0532 0130 00"),
    "iban, small letters": ("it's {}", "gb29nwbk60161331926819"),
    "iban, french": ("virement sur {}", "FR14 2004 1010 0505 0001 3M02 606"),
    "openai": ("key {} works", "sk-" + "proj-Ab12Cd34Ef56Gh78Ij90Kl12Mn34"),
    "anthropic": ("{}", "sk-" + "ant-api03-Ab12Cd34Ef56Gh78Ij90-Kl12Mn34_Op56"),
    "aws": ("export AWS_ACCESS_KEY_ID={}", "AKIA" + "IOSFODNN7EXAMPLE"),
    "aws secret": ("aws_secret_access_key = {}", "wJalrXUtnFEMI/K7MDENG/" + "bPxRfiCYEXAMPLEKEY"),
    "github": ("git clone with {}", "ghp_" + "16C7e42F292c6912E7710c838347Ae178B4a"),
    "slack": ("{}", "xoxb-" + "123456789012-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx"),
    "google": ("maps key={}", "AIza" + "SyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY"),
    "stripe": ("{}", "sk_" + "live_4eC39HqLyjWDarjtT1zdp7dc"),
    "jwt": (
        "Authorization: Bearer {}",
        "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    ),
    "bearer": ("curl -H 'Authorization: Bearer {}'", "Zk91mQ" + "2rT8vX4bN6pL0s"),
    "pem": ("{}", "-----BEGIN " + "RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"),
    "pem, cut off": ("here: {}", "-----BEGIN " + "PRIVATE KEY-----\nMIIEvQIBADANBgkqh"),
    "url": ("postgres://app:{}@db:5432/x", "s3cr3t"),
    "generic key": ("my api key is {}", "9f8e7d6c5b4a39281706"),
    "generic token": ("token: {}", "Qm9vYmFyMTIzNDU2Nzg5"),
    "client secret": ('"client_secret": "{}"', "aB3dE5fG7hJ9kL1m"),
    "password": ("my password is {} and I like pizza", "hunter2"),
    "password, a plain word": ("The wifi password is {}.", "sunshine"),
    "password, some words": ("the wifi password is {}, ok?", "blue elephant dances"),
    "password, quoted": ("password: {}", '"open sesame now"'),
    "password, for something": ("The password for my router is {}.", "blue42elephant"),
    "password, german": ("Mein Passwort lautet {}", "Sommer2024"),
    "password, french": ("mon mot de passe est {}", "Chaton99"),
    "password, spanish": ("mi contrase\u00f1a es {}", "Gatito99"),
    "password, chinese": ("\u6211\u7684\u5bc6\u7801\u662f{}", "abc12345"),
    "password, assigned": ("DB_PASSWORD={}", "tr0ub4dor&3"),
    "pin": ("my pin is {}", "4821"),
    "cvv": ("exp 12/29, CVV: {}", "737"),
    "seed phrase": (
        "my seed phrase is {}",
        "witch collapse practice feed shame open despair creek road again ice least",
    ),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_leaves_no_trace_and_the_words_around_it_stay(name: str) -> None:
    around, secret = SECRETS[name]
    done = mask_secrets(around.format(secret))
    assert secret not in done.text
    before, _, after = around.partition("{}")
    assert done.text.startswith(before)
    assert done.text.endswith(after)
    assert done.kinds


INNOCENT = """
My phone number is +49 151 23456789, call me after six.
Call (415) 555-2671 or 030 1234567.
Order number 1234567890123456 has not arrived.
Your tracking number is 1Z999AA10123456784.
The commit is 3f786850e387550fdab836ed7e6dc881de23001b.
md5 d41d8cd98f00b204e9800998ecf8427e, sha256 e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855
The id is 550e8400-e29b-41d4-a716-446655440000.
The primary key is 550e8400-e29b-41d4-a716-446655440000.
cache key: d41d8cd98f00b204e9800998ecf8427e
My budget is $10,000.00 and I have 2500 1200 3300 reasons.
1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16
1700000000000 is a timestamp, and so is 1716239022123456.
My credit score card reads 6666666666666 in the example.
IMEI 490154203237518 and ISBN 978-3-16-148410-0
The password is wrong again.
I forgot my password, is there a way to reset it?
password: required, at least 12 characters
The password is too weak.
def login(user: str, password: str) -> Token: ...
Das Passwort ist falsch.
The token is expired and the secret is to stay calm.
The key is under the mat, and the key to success is patience.
Our secret santa is Bob; the secret ingredient is cinnamon.
key: value, token: none, secret: null
for key, value in items.items(): print(key)
I use sk-learn-and-other-libraries-a-lot.
Flight LH 1234 on 2026-05-03 at 10:30, seat 12A, gate B42.
Version 10.4.15.2 at 192.168.100.200:8080
My zip code is 94110 and the area code is 415.
Press a key to continue. Keyboard, monkey, turkey.
The code is 200 when it works and 404 when not.
IBAN is short for International Bank Account Number, such as DE00 1234.
Ticket ABC-123456, case 00012345, invoice 2024-000123.
The tan line is 4 weeks old; my pin board is full.
Basic authentication is simple, bearer tokens are common.
See https://example.com:8443/path?token_type=bearer#key
A basic understanding of bearer-tokens-in-oauth is enough.
The serial is 5CG8250X7K and the model G502.
Mail me at ann@example.com.
Was ist der Schl\u00fcssel zum Erfolg? Geduld.
"""


@pytest.mark.parametrize("line", INNOCENT.strip().splitlines())
def test_ordinary_numbers_and_talk_about_secrets_stay_as_they_are(line: str) -> None:
    assert mask_secrets(line).text == line


def test_of_random_order_numbers_few_are_taken_for_cards() -> None:
    numbers = [str(4_000_000_000_000_000 + 7_919_000_003 * n)[:15] for n in range(2000)]
    assert sum(bool(find_secrets(f"order {number}")) for number in numbers) == 0


@given(st.text(max_size=200))
def test_masking_what_is_masked_changes_nothing(text: str) -> None:
    once = mask_secrets(f"my password is {text} key sk-a1B2c3D4e5F6g7H8i9J0k1L2")
    assert mask_secrets(once.text).text == once.text


@given(st.text(alphabet="0123456789 -.:=abcDEFkeypaswordis[]\"'\n", max_size=300))
def test_no_text_breaks_it_and_what_is_not_found_stays(text: str) -> None:
    done = mask_secrets(text)
    assert bool(done.kinds) == (done.text != text)


HOSTILE = {
    "password is ": "password is ",
    "password for ": "password for ",
    "key for a ": "key for a ",
    "digits": "1234 ",
    "one number": "4",
    "sk-a-": "sk-a-",
    "eyJ": "eyJ",
    "urls": "http://a:",
    "pem": "-----BEGIN PRIVATE KEY-----",
    "iban": "DE89 ",
    "quotes": 'password is "',
    "blanks": " ",
}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", HOSTILE)
def test_long_hostile_texts_are_read_through(name: str) -> None:
    """A fifth of a second each; where the time grew faster than the text, it would be many minutes."""
    piece = HOSTILE[name]
    text = piece * (150_000 // len(piece))
    assert mask_secrets(mask_secrets(text).text).text == mask_secrets(text).text


def test_checksums_are_those_of_the_standards() -> None:
    assert luhn("79927398713")
    assert not luhn("79927398710")
    assert iban("GB82WEST12345698765432")
    assert not iban("GB82WEST12345698765433")
