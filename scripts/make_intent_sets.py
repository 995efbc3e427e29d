"""Write the evaluation sets per kind of question: made-up people, months of their chats, and what they ask.

    python scripts/make_intent_sets.py            # tests/quality/intents/dev.jsonl and held.jsonl, to the byte

Two halves with nothing in common but their shape: `scripts/intents/dev.toml` holds the wordings, values and topics
of the people that weights and rules may be fitted on, `scripts/intents/held.toml` the words of the people that
nothing is ever fitted on. Each person speaks in some thirty sessions over eight months, says some eighty things in
passing, and is answered at the length that assistants have. An edited bank makes another set, whose figures do not
compare with those of the set before.
"""

from __future__ import annotations

import json
import random
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

BANKS = Path(__file__).resolve().parent / "intents"
SETS = Path(__file__).resolve().parents[1] / "tests" / "quality" / "intents"
HALVES = {"dev": 11, "held": 12}  # and their seeds
FACT_SESSIONS = 13  # sessions without a topic of their own
LATEST = (0, 2, 3, 8, 10, 15, 17, 21)  # days before the end on which the last sessions are
TYPO = 0.07  # of words with five letters or more
TAIL = 0.35  # of facts are followed by another question

# When a thing is said, as a share of the months: a value that is replaced comes early, its successor late.
EARLY, LATE, EVER = (0.0, 0.35), (0.6, 0.9), (0.0, 1.0)
WHEN = {
    "employer_old": EARLY, "city_old": EARLY, "budget_old": EARLY, "deadline_old": EARLY, "phone_old": EARLY,
    "rent_old": EARLY, "employer": LATE, "city": LATE, "budget": LATE, "deadline": LATE, "phone": LATE,
    "rent": LATE, "project": (0.0, 0.1), "trip_when": (0.0, 0.15), "husband": (0.0, 0.4), "shop": (0.45, 1.0),
    "sister": (0.0, 0.3), "manager": (0.0, 0.4), "building": (0.45, 1.0), "friend": (0.0, 0.25),
    "daughter": (0.3, 0.6), "study": (0.65, 1.0), "drummer": (0.0, 0.4), "drummer_work": (0.45, 1.0),
    "physio": (0.0, 0.4), "physio_street": (0.45, 1.0), "event1": (0.85, 1.0), "event2": (0.85, 1.0),
}  # fmt: skip
# The slots that an answer must hold for each thing said; by default the slot of the same name.
SLOTS = {"kids": ("kid1", "kid2"), "project": ("tool",), "builder": ("builder",), "pet": ("breed",)}
WORDS = {"alcohol": ("don't drink", "doesn't drink", "not drink", "sober", "alcohol", "teetotal"), "pet_habit": ()}
OUTDATED = ("employer_old", "city_old", "budget_old", "deadline_old", "phone_old", "rent_old")
SUBJECTS = {
    "trip": (("trip_when", "budget", "hotel", "companion"), ("budget_old",)),
    "sister": (("sister_city", "sister_job", "husband"), ()),
    "project": (("project", "deadline", "teammate"), ("deadline_old",)),
    "pet": (("pet", "vet"), ()),
    "room": (("builder", "reno_cost"), ()),
}
ALSO = {"trip": (), "sister": ("sister", "shop"), "project": (), "pet": ("pet_habit",), "room": ()}
CONSTRAINTS = {
    "food": (("allergy1", "diet"), ("allergy2", "allergy3", "dislike")),
    "move": (("mobility",), ("kids",)),
    "drink": (("alcohol",), ("allergy1", "allergy2", "allergy3", "diet")),
    "kids": (("kids",), ()),
}
INDIRECT = ("job", "kids", "age", "car", "partner", "instrument", "origin", "employer")
# final thing, the thing that links to it, and the words of which a line that links holds one way
HOPS = {
    "shop": (("street",), "husband", (("{sister}", "{husband}"), ("sister's husband",), ("brother-in-law",))),
    "building": (("building",), "manager", tuple(("{manager}", word) for word in ("manager", "boss", "report"))),
    "study": (("study",), "daughter", (("{friend}", "{daughter}"), ("friend's daughter",))),
    "drummer": (("drummer_work",), "drummer", tuple(("{drummer}", word) for word in ("drum", "drummer", "drums"))),
    "physio": (("physio_street",), "physio", (("{physio}", "physio"), ("{physio}", "physiotherapist"))),
}  # fmt: skip
HOP_FACTS = {"shop": "shop", "building": "building", "study": "study", "drummer": "drummer_work",
             "physio": "physio_street"}  # fmt: skip
AS_OF = ("city", "budget", "deadline", "employer", "phone", "rent")
MONTHS = {
    "en": "January February March April May June July August September October November December",
    "de": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    "fr": "janvier février mars avril mai juin juillet août septembre octobre novembre décembre",
    "es": "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre",
    "pt": "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro",
    "it": "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "nl": "januari februari maart april mei juni juli augustus september oktober november december",
}
DAY = {"en": "{d} {m}", "de": "{d}. {m}", "fr": "{d} {m}", "es": "{d} de {m}", "pt": "{d} de {m}", "it": "{d} {m}",
       "nl": "{d} {m}"}  # fmt: skip
PLAIN_ASKED, SMALL_TALK, NOTHING = 5, 7, 2  # questions a person; NOTHING of each kind


@dataclass(slots=True)
class Session:
    day: date
    topic: dict[str, Any] | None
    facts: list[tuple[str, str]] = field(default_factory=list)  # key and text
    ids: list[str] = field(default_factory=list)
    tips: list[list[str]] = field(default_factory=list)  # by exchange, the words each answer is known by
    last: datetime | None = None


class Person:
    """One owner: values, sessions, messages and questions."""

    def __init__(self, bank: dict[str, Any], number: int, seed: int) -> None:
        entry = bank["person"][number]
        self.bank, self.name, self.language = bank, entry["name"], entry.get("language", "en")
        self.style = entry.get("style", "")
        self.chance = random.Random(f"{seed} {self.name}")  # noqa: S311 - the same people each time
        self.begin, self.end = date.fromisoformat(bank["begin"]), date.fromisoformat(bank["end"][number])
        self.values = {slot: values[number].split("|") for slot, values in bank["pool"].items()}
        for at, event in enumerate(("event1", "event2")):
            self.values[f"{event}_day"] = [
                self.day(self.end + timedelta(days=9 + 7 * at + self.chance.randrange(6)))
            ]
        self.lines: list[dict[str, Any]] = []
        self.said: dict[str, str] = {}  # key of a thing said → id of its message
        self.at: dict[str, date] = {}
        self.items: dict[str, list[tuple[str, list[str]]]] = {}
        self.asked = 0
        self.sessions = self._schedule()

    # --- what is said --------------------------------------------------------------------------------
    def _schedule(self) -> list[Session]:
        topics = self.chance.sample(self.bank["topic"], len(self.bank["topic"]))
        count = len(topics) + FACT_SESSIONS
        latest = {self.end - timedelta(days=days) for days in LATEST}
        span = (self.end - self.begin).days - LATEST[-1] - 2
        early = {
            self.begin + timedelta(days=round(span * at / (count - len(latest))))
            for at in range(count - len(latest))
        }
        days = sorted(early | latest)
        with_topic = set(self.chance.sample(range(count - 1), len(topics) - 1)) | {count - 1}
        rest = iter(topics)
        return [Session(day, next(rest) if at in with_topic else None) for at, day in enumerate(days)]

    def talk(self) -> None:
        for key in self.bank["facts"]:
            if key.rpartition("_")[2] in MONTHS:  # the wording of a language, not a thing of its own
                continue
            self._place(key, self._wording(self.bank["facts"], key), WHEN.get(key, EVER))
        for key, spec in self.bank["lists"].items():
            if "items" in spec:
                self._place_items(key, spec)
        procedures = self.chance.sample(range(len(self.bank["procedure"])), 6)
        for number in procedures:
            self._place(f"procedure{number}", self.chance.choice(self.bank["procedure"][number]["say"]), EVER)
        for number, session in enumerate(self.sessions):
            self._hold(number, session)

    def _place(self, key: str, template: str, when: tuple[float, float]) -> None:
        first, last = (round(share * (len(self.sessions) - 1)) for share in when)
        # A session with fewer things said is likelier, so that they spread.
        places = range(first, last + 1)
        session = min(
            places,
            key=lambda at: (len(self.sessions[at].facts) + bool(self.sessions[at].topic), self.chance.random()),
        )
        self.sessions[session].facts.append((key, self.fill(template, typed=True)))

    def _place_items(self, key: str, spec: dict[str, Any]) -> None:
        chosen = self.chance.sample(spec["items"], self.chance.choice(spec["per"]))
        wordings = self.chance.sample(spec["say"], len(spec["say"]))
        self.items[key] = []
        for at, item in enumerate(chosen):
            shown, *others = item.split("|")
            self.values["x"] = [shown]
            self._place(f"{key}:{at}", wordings[at % len(wordings)], EVER)
            self.items[key].append((f"{key}:{at}", [shown, *others]))

    def _hold(self, number: int, session: Session) -> None:
        exchanges: list[tuple[str, str, str]] = []
        if session.topic is not None:
            exchanges = [("", *pair) for pair in self._topic_exchanges(session)]
        for key, text in session.facts:
            tail, reply = self.chance.choice(self.bank["talk"]["tails"])
            if self.chance.random() < TAIL:
                made = (key, f"{text.rstrip('.')}{'' if text[-1] in '?!.' else '.'} {self.typed(tail)}", reply)
            else:
                made = (key, text, self.chance.choice(self.bank["talk"]["replies"]))
            exchanges.insert(self.chance.randint(0, len(exchanges)), made)
        at = datetime(session.day.year, session.day.month, session.day.day, tzinfo=UTC)
        at += timedelta(hours=self.chance.randint(7, 20), minutes=self.chance.randrange(60))
        for key, asked, answered in exchanges:
            for role, text in (("user", asked), ("assistant", answered)):
                id_ = f"{self.name}-{number}-{len(session.ids)}"
                session.ids.append(id_)
                self.lines.append({
                    "memory": id_, "owner": self.name, "text": text, "at": at.isoformat().replace("+00:00", "Z"),
                    "session": f"{self.name}-{number}", "role": role,
                })  # fmt: skip
                if key and role == "user":
                    self.said[key], self.at[key] = id_, session.day
                at += timedelta(seconds=self.chance.randint(25, 90))
        session.last = at

    def _topic_exchanges(self, session: Session) -> Iterator[tuple[str, str]]:
        assert session.topic is not None  # noqa: S101 - the caller looked
        tips, asks = session.topic["tips"], session.topic["asks"]
        extra = self.chance.sample(range(len(asks)), len(tips) - len(asks))
        for at, asked in enumerate(asks):
            given = [tips[at], *([tips[len(asks) + extra.index(at)]] if at in extra else [])]
            session.tips.append([match for tip in given for match in re.findall(r"\*(.+?)\*", tip)])
            parts = [self.chance.choice(self.bank["talk"]["openers"]), *(tip.replace("*", "") for tip in given)]
            parts.append(self.chance.choice(self.bank["talk"]["closers"]))
            yield self.typed(asked), " ".join(parts)

    # --- words ---------------------------------------------------------------------------------------
    def _wording(self, bank: dict[str, Any], key: str) -> str:
        own = bank.get(f"{key}_{self.language}", ())
        return str(self.chance.choice(own or bank[key]))

    def fill(self, template: str, *, typed: bool = False, **more: str) -> str:
        values = {slot: words[0] for slot, words in self.values.items()} | more
        return (self.typed(template) if typed else template).format_map(values)

    def typed(self, text: str) -> str:
        """*text* as this person types; slots stay as they are."""
        words = text.split(" ")
        if self.style == "lower":
            return " ".join(word if "{" in word else word.lower() for word in words).rstrip(".")
        if self.style == "typos":
            return " ".join(self._slip(word) for word in words)
        return text

    def _slip(self, word: str) -> str:
        if "{" in word or not word.isalpha() or len(word) < 5 or self.chance.random() >= TYPO:
            return word
        at = self.chance.randrange(1, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    def day(self, day: date) -> str:
        return DAY[self.language].format(d=day.day, m=MONTHS[self.language].split()[day.month - 1])

    def english_day(self, day: date) -> str:
        month = MONTHS["en"].split()[day.month - 1]
        return self.chance.choice(
            [f"{day.day} {month}", f"{month} {day.day}", f"the {_ordinal(day.day)} of {month}"]
        )

    # --- what is asked -------------------------------------------------------------------------------
    def ask(
        self,
        kind: str,
        text: str,
        at: datetime,
        wanted: Sequence[dict[str, Any]] = (),
        *,
        serves: Sequence[str] = (),
        helps: Sequence[str] = (),
        forbidden: Sequence[str] = (),
    ) -> None:
        self.asked += 1
        line: dict[str, Any] = {
            "query": text, "owner": self.name, "id": f"{self.name}-q{self.asked}", "kind": kind,
            "asked_at": at.isoformat().replace("+00:00", "Z"), "wanted": list(wanted),
        }  # fmt: skip
        known = {id_ for piece in wanted for id_ in piece["ids"]}
        if left := sorted(set(serves) - known):
            line["serves"] = left
        if helps:
            line["helps"] = sorted(set(helps))
        if forbidden:
            line["forbidden"] = sorted(set(forbidden))
        self.lines.append(line)

    def asks(self, form: str, count: int = 1, **more: str) -> list[str]:
        """*count* wordings of *form*, in the person's own language where the bank has some."""
        bank = self.bank["ask"]
        pool = list(bank[form])
        own = list(bank.get(f"{form}_{self.language}", []))
        own = self.chance.sample(own, len(own))
        chosen = [*own[:count], *self.chance.sample(pool, min(len(pool), count))][:count]
        return [self.fill(text, typed=text in pool, **more) for text in chosen]

    def later(self, days: int | None = None) -> datetime:
        day = self.end + timedelta(days=self.chance.randint(1, 5) if days is None else days)
        return datetime(
            day.year, day.month, day.day, self.chance.randint(8, 21), self.chance.randrange(60), tzinfo=UTC
        )

    def answers(self, key: str) -> list[str]:
        if key in WORDS:
            return list(WORDS[key])
        return [word for slot in SLOTS.get(key, (key,)) for word in self.values.get(slot, ())]

    def pieces(self, *keys: str) -> list[dict[str, Any]]:
        found = []
        for key in keys:
            for slot in SLOTS.get(key, (key,)):
                words = WORDS.get(key) or self.values[slot]
                found.append({"any": [[word] for word in words], "ids": [self.said[key]]})
        return found

    def question_all(self) -> None:
        for name in ("overview", "subjects", "past", "by_date", "lists", "indirect", "hops", "constraints", "as_of",
                     "procedures", "plain", "nothing"):  # fmt: skip
            getattr(self, f"_ask_{name}")()

    def _ask_overview(self) -> None:
        own = [key for key in self.said if key not in OUTDATED and not key.startswith(("other_", "procedure"))]
        helps = [word for key in own for word in self.answers(key)]
        helps += [word for items in self.items.values() for _, words in items for word in words]
        others = [*self.bank["others"], self.values["city_old"][0]]
        family = {"any": [[word] for slot in ("partner", "kid1", "kid2") for word in self.values[slot]],
                  "ids": [self.said["partner"], self.said["kids"]]}  # fmt: skip
        for text in self.asks("overview_caller", count=6):
            wanted = [*self.pieces("job", "city", "allergy1"), family]
            self.ask("overview of caller", text, self.later(), wanted, serves=[self.said[key] for key in own],
                     helps=helps, forbidden=others)  # fmt: skip

    def _ask_subjects(self) -> None:
        for subject, (keys, old) in SUBJECTS.items():
            for text in self.asks(f"subject_{subject}"):
                also = ALSO[subject]
                self.ask("overview of subject", text, self.later(), self.pieces(*keys),
                         serves=[self.said[key] for key in also],
                         helps=[word for key in also for word in self.answers(key)],
                         forbidden=[self.values[key][0] for key in old])  # fmt: skip

    def _label(self, session: Session) -> dict[str, Any]:
        assert session.topic is not None  # noqa: S101 - the caller looked
        return {"any": [[label] for label in session.topic["labels"]], "ids": session.ids, "strict": True}

    def _ask_past(self) -> None:
        kind = "past conversation"
        with_topic = [session for session in self.sessions if session.topic]
        last = with_topic[-1]
        self.ask(kind, self.asks("past_last")[0], self.later(), [self._label(last)], serves=last.ids)
        chosen = self.chance.sample(with_topic[:-1], 4)
        for at, session in enumerate(chosen):
            assert session.topic is not None  # noqa: S101 - see with_topic
            form = "past_summary" if at % 2 else "past_suggest"
            tips = [{"any": [[tip] for tip in given], "ids": []} for given in session.tips]
            any_tip = {"any": [way for piece in tips for way in piece["any"]], "ids": []}
            wanted = [self._label(session), any_tip] if at % 2 else tips[:2]
            self.ask(
                kind, self.asks(form, topic=session.topic["name"])[0], self.later(), wanted, serves=session.ids
            )
        latest = with_topic[-3:]
        self.ask(kind, self.asks("past_topics")[0], self.later(), [self._label(one) for one in latest],
                 helps=[label for one in with_topic for label in one.topic["labels"]])  # fmt: skip

    def _spoken(self, sessions: Sequence[Session], facts: int) -> list[dict[str, Any]]:
        found = []
        for session in sessions:
            found += [self._label(session)] if session.topic else []
            keys = [key for key, _ in session.facts if self.answers(key) and ":" not in key]
            found += [
                {"any": [[word] for word in self.answers(key)], "ids": [self.said[key]]} for key in keys[:facts]
            ]
        return found

    def _ask_date(self, form: str, at: datetime, sessions: Sequence[Session], facts: int = 1, **more: str) -> None:
        wanted = self._spoken(sessions, facts)
        if wanted and max(one.last for one in self.sessions if one.last) <= at:
            ids = [id_ for session in sessions for id_ in session.ids]
            self.ask("by date", self.asks(form, **more)[0], at, wanted, serves=ids)

    def _ask_by_date(self) -> None:
        by_day = {session.day: session for session in self.sessions}
        self._ask_date("date_1", self.later(1), [by_day[self.end]])
        near = self.chance.choice([0, 2])
        if near:
            self._ask_date("date_2", self.later(2), [by_day[self.end]])
        elif (last := by_day[self.end].last) is not None:
            self._ask_date("date_0", last + timedelta(hours=1), [by_day[self.end]])
        self._ask_date("date_3", self.later(1), [by_day[self.end - timedelta(days=2)]])
        monday = self.end - timedelta(days=self.end.weekday())
        week = [session for session in self.sessions if monday <= session.day < monday + timedelta(days=7)]
        self._ask_date("date_week", self.later(7 - self.end.weekday() + self.chance.randrange(3)), week)
        target = self.chance.choice([self.end, self.end - timedelta(days=2)])
        self._ask_date("date_weekday", self.later(4), [by_day[target]], weekday=target.strftime("%A"))
        for session in self.chance.sample(self.sessions[4:-6], 2):
            own = f"date_on_{self.language}" in self.bank["ask"]
            shown = self.day(session.day) if own else self.english_day(session.day)
            self._ask_date("date_on", self.later(), [session], facts=1 if session.topic else 2, date=shown)
        event = self.chance.choice(["event1", "event2"])
        day = self.values[f"{event}_day"][0]
        self.ask("by date", self.asks("date_event", date=day)[0], self.later(), self.pieces(event))
        if self.end.month == 1:
            eve = date(self.end.year - 1, 12, 25)
            week = [one for one in self.sessions if eve - timedelta(days=7) <= one.day < eve]
            self._ask_date("date_christmas", self.later(), week)

    def _ask_lists(self) -> None:
        for key, spec in self.bank["lists"].items():
            own = spec.get(f"ask_{self.language}", ())
            asked = self.chance.choice(own or spec["ask"])
            text = asked if own else self.typed(asked)
            if key == "allergy":
                wanted = self.pieces("allergy1", "allergy2", "allergy3")
                self.ask("list", text, self.later(), wanted, forbidden=self.bank["others_allergic"])
                continue
            wanted = [
                {"any": [[word] for word in words], "ids": [self.said[said]]} for said, words in self.items[key]
            ]
            self.ask("list", text, self.later(), wanted)

    def _ask_indirect(self) -> None:
        for key in self.chance.sample(INDIRECT, 6):
            old = [self.values[f"{key}_old"][0]] if f"{key}_old" in self.values else []
            also = [self.said["partner_job"]] if key == "partner" else []
            self.ask("indirect", self.asks(f"indirect_{key}")[0], self.later(), self.pieces(key), forbidden=old,
                     serves=also)  # fmt: skip

    def _ask_hops(self) -> None:
        for hop, (finals, link, ways) in HOPS.items():
            final = HOP_FACTS[hop]
            wanted = [{"any": [[word] for slot in finals for word in self.values[slot]], "ids": [self.said[final]]}]
            lines = [[self.values[part[1:-1]][-1] if part[0] == "{" else part for part in way] for way in ways]
            wanted.append({"any": lines, "ids": [self.said[link]]})
            also = [self.said[key] for key in ("sister", "friend") if hop in {"shop", "study"}]
            for text in self.asks(f"hops_{hop}", count=2 if hop == "shop" else 1):
                self.ask("several hops", text, self.later(), wanted, serves=also)

    def _ask_constraints(self) -> None:
        for request, (keys, also) in CONSTRAINTS.items():
            for text in self.asks(f"constraint_{request}", count=2 if request == "food" else 1):
                helps = [word for key in also for word in self.answers(key)]
                self.ask("standing constraint", text, self.later(), self.pieces(*keys),
                         serves=[self.said[key] for key in also], helps=helps)  # fmt: skip

    def _ask_as_of(self) -> None:
        for key in AS_OF:
            form = (
                f"asof_{key}_month"
                if f"asof_{key}_month" in self.bank["ask"] and self.chance.random() < 0.4
                else f"asof_{key}"
            )
            old, new = self.at[f"{key}_old"], self.at[key]
            month = self._month_between(old, new)
            text = self.asks(form, month=month)[0]
            now = [self.said[key]] if month not in text else []
            self.ask("as of", text, self.later(), self.pieces(f"{key}_old"), serves=now,
                     helps=self.values[key] if now else ())  # fmt: skip

    def _month_between(self, old: date, new: date) -> str:
        """A month in which the old value held all along: from when it was said to before the new one was."""
        first = old.month + 1 if old.day > 5 else old.month
        months = range(first, new.month if new.year == old.year else 13)
        return MONTHS["en"].split()[(self.chance.choice(list(months) or [old.month])) - 1]

    def _ask_procedures(self) -> None:
        for key in [key for key in self.said if key.startswith("procedure")]:
            procedure = self.bank["procedure"][int(key.removeprefix("procedure"))]
            wanted = [{"any": [[word]], "ids": [self.said[key]]} for word in procedure["key"]]
            self.ask("procedure", self.typed(self.chance.choice(procedure["ask"])), self.later(), wanted)

    def _ask_plain(self) -> None:
        for text, key in self.chance.sample(self.bank["ask"]["plain"], PLAIN_ASKED):
            slots = {"pet": "pet", "sister": "sister"}.get(key)
            piece = (
                [{"any": [[word] for word in self.values[slots]], "ids": [self.said[key]]}]
                if slots
                else self.pieces(key)
            )
            old = [self.values[f"{key}_old"][0]] if f"{key}_old" in self.values else []
            self.ask("single fact", self.fill(text, typed=True), self.later(), piece, forbidden=old)

    def _ask_nothing(self) -> None:
        for text in self.asks("small_talk", count=SMALL_TALK):
            self.ask("small talk", text, self.later())
        taken = {session.day for session in self.sessions}
        empty = [self.begin + timedelta(days=at) for at in range(30, (self.end - self.begin).days - 30)]
        free = [day for day in empty if day not in taken]
        for form, texts in self.bank["nothing"].items():
            kind = form.replace("_", " ").replace("overview ", "overview of ")
            for text in self.chance.sample(texts, NOTHING):
                month = self._month_between(self.at["city_old"], self.at["city"])
                shown = self.english_day(self.chance.choice(free))
                self.ask(kind, self.fill(text, typed=True, month=month, empty_date=shown), self.later())


def _ordinal(number: int) -> str:
    ending = "th" if number in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def lines(half: str) -> Iterator[dict[str, Any]]:
    """Of the set of *half*: every person's messages, then their questions."""
    bank = tomllib.loads((BANKS / f"{half}.toml").read_text(encoding="utf-8"))
    for number in range(len(bank["person"])):
        person = Person(bank, number, HALVES[half])
        person.talk()
        person.question_all()
        yield from person.lines


def text_of(half: str) -> str:
    return "".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines(half))


if __name__ == "__main__":
    SETS.mkdir(parents=True, exist_ok=True)
    for name in HALVES:
        (SETS / f"{name}.jsonl").write_text(text_of(name), encoding="utf-8")
