"""The mutants: the rule, the line, its replacement, and the tests that must notice."""
# ruff: noqa: E501 - a mutant is easier to read in one row

from typing import NamedTuple

from fencelock_lab.mutants.trial import PACKAGE, Trial


class Mutant(NamedTuple):
    """One mutant. `old` occurs exactly once in `file`, a path under src/fencelock; `tests` are pytest's arguments."""

    rule: str
    file: str
    old: str
    new: str
    tests: str


_ADMIT = "_flows/admit.py"
_GUARDING = "_flows/guarding.py"
_EFFECTS = "_flows/effects.py"
_TENURE = "_flows/tenure.py"
_REMOTE = "_remote/carried.py"
_ACQUIRE = "_flows/acquire.py"
_RECORD = "_keeper/record.py"
_KEEPER = "_keeper/keeper.py"
_QUEUEING = "stores/sqlite/source/queue.py"
_SQL = "stores/sqlite/source/source.sql"
_GUARD_SQL = "stores/sqlite/guard/guard.sql"
_MARK_SQL = "stores/sqlite/guard/schema.sql"
_TABLE_SQL = "stores/sqlite/guard/triggers.sql"
_WORKERS = "tests/http/test_workers.py"
_GUARDS = "tests/rules/test_guards.py"
_ADMITS = "tests/unit/test_admit.py"
_FILE_KIT = "tests/conformance/test_sqlite.py"
_ENFORCED = "tests/rules/test_guard_enforcement.py"
_SEALS = "tests/rules/test_guard_seals.py"
_ENDS = "tests/rules/test_guard_ends.py"
_FLOWS = "tests/unit/test_flows.py"
_LEASES = "tests/rules/test_leases.py"
_KEEPING = "tests/unit/test_keeper.py"
_STORE = "tests/unit/test_source_sqlite.py"
_OPTIMISTIC = "stores/optimistic/guard_codec.py"
_COMPARES = "tests/conformance/test_optimistic.py"
_ETCD_BLOCKS = "tests/etcd/test_guard_blocks.py"
_ETCD_LIFE = "tests/etcd/test_guard_life.py"
_ZOOKEEPER_BLOCKS = "tests/zookeeper/test_guard_blocks.py"

MUTANTS = (
    Mutant("G1 lower is stale", _ADMIT, "if sequencer.token < mark.token:", "if False:", _GUARDS),
    Mutant("G1 >= made >", _ADMIT, "        return Verdict.PASS", "        raise _stale(mark, sequencer, '')", "tests/unit/test_admit.py"),
    Mutant("G1 collision", _ADMIT, "if (mark.digest, mark.history_id) != (", "if False and (", _GUARDS),
    Mutant("G2 seal skipped", _GUARDING, "    if raised:\n        yield RaiseMarks(tuple(raised), sequencer)\n    return Sealed(", "    return Sealed(", f"{_GUARDS} {_SEALS}"),
    Mutant("G2 sealed twice", _GUARDING, "    tenure.remember(scope.keys, scope.keys_without(sealed.refusing()))\n    return sealed", "    return sealed", f"{_GUARDS} {_SEALS}"),
    Mutant("G2 late guard", _TENURE, "if self.has_read and late and not is_independent:", "if False:", f"{_GUARDS} {_SEALS}"),
    Mutant("G2 reading is not noted", _GUARDING, "        presented = _without(presented, refused_resources)\n    tenure.begin_reading(scope.keys_without(refused_resources))", "        presented = _without(presented, refused_resources)", f"{_GUARDS} {_SEALS}"),
    Mutant("G5 another lock", _ADMIT, "if mark.lock != sequencer.lock:", "if False:", "tests/unit/test_admit.py"),
    Mutant("G5 another source", _ADMIT, "if mark.source_id is not None and mark.source_id != sequencer.source_id:", "if False:", _GUARDS),
    Mutant("G6 raised mark admits nobody", _ADMIT, "    if mark.digest is None:\n", "    if False:\n", "tests/rules/test_guard_enforcement.py tests/unit/test_admit.py"),
    Mutant("G9 remembered seal", _ADMIT, "    if was_sealed:", "    if False:", "tests/unit/test_admit.py"),
    Mutant("G9 seals that the client was told of", _REMOTE, "return bool(self._told) and seal_id(key) in self._told", "return False", _WORKERS),
    Mutant("G9 seals of a service behind, that the client repeats", "_remote/seals.py", "return tuple(one.removeprefix(begin) for one in self._told if one.startswith(begin))", "return ()", _WORKERS),
    Mutant("G9 seals of a service behind, that the client is told of", _REMOTE, "return (*(one for one in own if one not in services), *passed)", "return tuple(own)", _WORKERS),
    Mutant("G2 a resource that the client was not told of", _REMOTE, "self.has_read = bool(told)", "self.has_read = False", _WORKERS),
    Mutant("G10 closed mark", _ADMIT, "    if mark.is_closed:\n        raise _stale", "    if False:\n        raise _stale", _ENDS),
    Mutant("G12 anybody closes", _OPTIMISTIC, "            if mark.digest == digest:", "            if True:", _COMPARES),
    Mutant("G12 one digest", "model.py", "return one_way(one_way(claim))", "return one_way(claim)", "tests/unit/test_model.py"),
    Mutant("G12 anybody closes a file's mark", _GUARD_SQL, "WHERE resource = :resource AND digest = :digest;", "WHERE resource = :resource AND :digest IS NOT NULL;", _FILE_KIT),
    Mutant("G12 any proof holds the lock", "stores/sqlite/source/inspection.py", "is_its = view.digest == one_way(request.proof) and ", "is_its = ", _FILE_KIT),
    Mutant("G12 the file's ceiling forgets the mark", _MARK_SQL, "ifnull(OLD.token, 0)) + 1125899906842624", "0) + 1125899906842624", _ENFORCED),
    Mutant("G12 the file's first mark has no ceiling", _MARK_SQL, "WHEN NEW.token > max((strftime('%s', 'now') - 1767225600) * 1073741824, 0) + 1125899906842624", "WHEN 0", _ENFORCED),
    Mutant("G12 any entry vouches for a token", _MARK_SQL, "ifnull(OLD.token, 0)) + 1125899906842624\n    AND NOT EXISTS (\n        SELECT 1 FROM fencelock_audit AS entry\n        WHERE entry.id = NEW.audit_id AND entry.to_token = NEW.token AND entry.is_implausible", "ifnull(OLD.token, 0)) + 1125899906842624\n    AND NOT EXISTS (\n        SELECT 1 FROM fencelock_audit AS entry\n        WHERE entry.id = NEW.audit_id", _ENFORCED),
    Mutant("G3 an overtaken block is told as done", _GUARDING, "        yield from explain_conflict(scope, sequencer, tenure, conflict)", "        return", _COMPARES),
    Mutant("G14 a key is looked for, and not begun", _EFFECTS, "check_not_begun(resource, (yield from ask(BeginEffect(resource, effect))), effect)", "check_not_begun(resource, (yield from ask(ReadEffect(resource, effect.key))), effect)", "tests/process/test_once.py"),
    Mutant("G14 a stale lease is told nothing", _EFFECTS, "        yield from tell_if_done(scope, effect, stale)\n", "", "tests/rules/test_once.py"),
    Mutant("G14 another request is taken for done", _EFFECTS, "    if before.request_digest != effect.request_digest:", "    if False:", "tests/rules/test_once.py"),
    Mutant("G3 etcd compares nothing", "stores/etcd/guard/block.py", "txn((one.compare for one in conditions), writes,", "txn((), writes,", _ETCD_BLOCKS),
    Mutant("G3 etcd's refusal is ignored", "stores/etcd/guard/block.py", "    if answer.succeeded:\n", "    if True:\n", _ETCD_BLOCKS),
    Mutant("G3 ZooKeeper compares no mark", "stores/zookeeper/guard/block.py", "return [*self._guard_conditions, *self._read.values()]", "return [*self._read.values()]", _ZOOKEEPER_BLOCKS),
    Mutant("G2 ZooKeeper reads what may be old", "stores/zookeeper/guard/block.py", "        if self._client.session != self._session:", "        if False:", _ZOOKEEPER_BLOCKS),
    Mutant("G5 a block leaves its resources", "stores/etcd/guard/block.py", "if not any(where.startswith(area.prefix) for area in self._areas.values()):", "if False:", _ETCD_BLOCKS),
    Mutant("G9 etcd's revisions that come again", "stores/etcd/guard/codec.py", "unchanged(self._layout.mark(name), stored.value, _name(name))", "EtcdCondition(was_modified(self._layout.mark(name), stored.version), get(self._layout.mark(name)), _name)", "tests/etcd/test_guard_restores.py"),
    Mutant("G9 ZooKeeper's versions that come again", "stores/zookeeper/guard/codec.py", "        if digest_node in self._digest_nodes[name]:", "        if False:", "tests/zookeeper/test_guard_restores.py"),
    Mutant("G10 a lease that is over writes on", "stores/etcd/guard/codec.py", "        if self._locks is not None:\n", "        if False:\n", _ETCD_LIFE),
    Mutant("G15 a seal compares no floors", _OPTIMISTIC, "        if not changes.relies_on_floors:", "        if True:", _COMPARES),
    Mutant("G15 a rebound mark goes", "stores/optimistic/purging.py", " for one in stored if not one.is_rebound]", " for one in stored]", _COMPARES),
    Mutant("H6 a child writes its parent's block", _OPTIMISTIC, "if self._process_id != os.getpid():", "if False:", _ETCD_LIFE),
    Mutant("H1 margin", _ACQUIRE, "return sent_ms + min(remaining_ms, ttl_ms) - margin_ms(ttl_ms)", "return sent_ms + min(remaining_ms, ttl_ms)", _FLOWS),
    Mutant("H1 time left beyond the ttl", _ACQUIRE, "min(remaining_ms, ttl_ms) - margin", "remaining_ms - margin", _FLOWS),
    Mutant("H1 late grant is used", _ACQUIRE, "    if now_ms >= until_ms:", "    if False:", _FLOWS),
    Mutant("H2 late renewal revives", _RECORD, "if self._was_reported_over or received_ms >= self.deadline_ms:", "if False:", _KEEPING),
    Mutant("H2 loss is not told", _KEEPER, "        self._call_listeners(record)\n", "", _KEEPING),
    Mutant("H2 expiry leaves its claim", _KEEPER, "        if record.state == EXPIRED:\n", "        if False:\n", _KEEPING),
    Mutant("H3 the answer to a release is thrown away", "_flows/renewal.py", "(yield from release(lock, claim)).was_held", "(yield from release(lock, claim)) is not None", _LEASES),
    Mutant("H3 a repeated release is a loss", "_flows/retry.py", "Released(was_held=True) if doubts and isinstance(reply, Released) else reply", "reply", _LEASES),
    Mutant("H4 release ends another thread's lease", "_api/lock.py", "own.newest() or self._current", "self._current", _LEASES),
    Mutant("H4 a released lease stays its thread's own", "_api/own_leases.py", "        self.is_returned = True\n        if not self.is_block:\n", "        if False:\n", _LEASES),
    Mutant("H4 ended claim granted again", _SQL, "AND forgotten_us < ? AND ended_digest IS NOT ?", "AND (? OR ? OR 1)", "tests/rules/test_claims.py"),
    Mutant("H4 late duplicate", _QUEUEING, "return digest == self.ended_digest or born_us <= max(self.forgotten_us, self.born_after_us)", "return False", "tests/rules/test_claims.py"),
    Mutant("H4 release by an old claim", _SQL, "WHERE name = ? AND digest = ?;", "WHERE name = ? AND (? OR 1);", _STORE),
    Mutant("H5 timeout leaves its place", _ACQUIRE, "            yield from ask_source(Release(request.lock, request.claim))\n            return sent_ms, Busy()", "            return sent_ms, Busy()", _FLOWS),
    Mutant("H7 barging", _SQL, "\n  AND NOT EXISTS (SELECT 1 FROM fencelock_waiter AS w WHERE w.lock = fencelock_lock.name);", ";", f"{_STORE} tests/rules/test_leases.py"),
    Mutant("H7 out of turn", _QUEUEING, "is_head = look.head in (digest, None)", "is_head = True", f"{_STORE} tests/rules/test_leases.py"),
    Mutant("T1 above the bound", _QUEUEING, "return look.counter + 1 if look.counter < look.bound else None", "return look.counter + 1", f"{_STORE} tests/rules/test_tokens.py"),
    Mutant("T1 bound not flushed", "stores/sqlite/connection/database.py", '_set_synchronous("EXTRA")', '_set_synchronous("NORMAL")', "tests/process/test_power_cut.py"),
    Mutant("T4 an expired lease is renewed", _SQL, "AND l.digest = asked.key AND l.deadline_ms > (SELECT fencelock_now_ns() / 1000000)", "AND l.digest = asked.key", f"{_STORE} tests/rules/test_tokens.py"),
    Mutant("T7 epoch does not jump", "stores/source_clock.py", "// EPOCH_STRIDE + 1) * EPOCH_STRIDE", "// EPOCH_STRIDE) * EPOCH_STRIDE + highest_token % EPOCH_STRIDE", f"{_STORE} tests/rules/test_tokens.py"),
    Mutant("G1 the file forgets the token", _GUARD_SQL, "WHERE mark.resource = ? AND mark.token = ? AND", "WHERE mark.resource = ? AND mark.token >= ? AND", _ADMITS),
    Mutant("G1 the file forgets the digest", _GUARD_SQL, "AND mark.digest = ? AND", "AND mark.digest >= ? AND", _ADMITS),
    Mutant("G5 the file forgets the lock", _GUARD_SQL, "AND mark.lock = ?\n", "AND mark.lock <= ?\n", _ADMITS),
    Mutant("G5 the file forgets the source", _GUARD_SQL, "AND mark.source_id = ? AND", "AND mark.source_id <= ? AND", _ADMITS),
    Mutant("G1 the file forgets the history", _GUARD_SQL, "AND mark.history_id = ? AND", "AND mark.history_id <= ? AND", _ADMITS),
    Mutant("G10 the file forgets the close", _GUARD_SQL, " AND NOT mark.is_closed\n    ),", "\n    ),", _ADMITS),
    Mutant("G6 presenting is not checked", _MARK_SQL, "mark.token = NEW.token AND mark.digest = NEW.digest AND NOT mark.is_closed", "1", _ENFORCED),
    Mutant("G6 presenting without foreign keys", _MARK_SQL, "WHERE NOT EXISTS (SELECT 1 FROM pragma_foreign_keys WHERE foreign_keys = 1);", "WHERE 0;", _ENFORCED),
    Mutant("G8 a mark goes down", _MARK_SQL, "ELSE ifnull(NEW.token > ifnull(OLD.token, 0), 0)", "ELSE 1", _ENFORCED),
    Mutant("G8 lowered without an entry", _MARK_SQL, "AND entry.from_token = ifnull(OLD.token, 0) AND entry.to_token = ifnull(NEW.token, 0)", "", _ENFORCED),
    Mutant("G8 lowered by an old entry", _MARK_SQL, "NEW.audit_id > ifnull(OLD.audit_id, 0)\n            AND EXISTS", "EXISTS", _ENFORCED),
    Mutant("G5 a mark changes its lock", _MARK_SQL, "WHEN NEW.lock <> OLD.lock OR (OLD.source_id", "WHEN (OLD.source_id", _ENFORCED),
    Mutant("G5 an entry that is no rebind changes the lock", _MARK_SQL, "AND (entry.action = 'rebind' OR NEW.lock = OLD.lock)", "", _ENFORCED),
    Mutant("G10 a closed mark is opened", _MARK_SQL, "AND NEW.is_closed >= OLD.is_closed", "", _ENFORCED),
    Mutant("G1 a mark changes hands at one token", _MARK_SQL, "NEW.digest IS OLD.digest AND NEW.source_id IS", "NEW.source_id IS", _ENFORCED),
    Mutant("G8 a mark is replaced", _MARK_SQL, "WHEN EXISTS (SELECT 1 FROM fencelock_mark WHERE resource = NEW.resource)", "WHEN 0", _ENFORCED),
    Mutant("G8 a mark is deleted", _MARK_SQL, "WHERE floor.source_id = OLD.source_id AND floor.token >= OLD.token\n    )\n    OR EXISTS (SELECT", "WHERE floor.source_id = OLD.source_id AND floor.token >= OLD.token\n    ) AND 0\n    OR 0 AND EXISTS (SELECT", _ENFORCED),
    Mutant("G6 the tables do not look at the mark", _TABLE_SQL, "CREATE TRIGGER main.{trigger} BEFORE {kind} ON {table}\nWHEN NOT EXISTS (\n    SELECT 1 FROM fencelock_seal AS seal JOIN fencelock_mark AS mark USING (resource, token, digest)\n    WHERE seal.resource = {resource} AND NOT mark.is_closed\n)\nBEGIN\n    SELECT RAISE", "CREATE TRIGGER main.{trigger} BEFORE {kind} ON {table}\nWHEN NOT EXISTS (SELECT 1 FROM fencelock_seal WHERE resource = {resource})\nBEGIN\n    SELECT RAISE", _ENFORCED),
    Mutant("H7 tasks overtake each other", "_drivers/aio.py", "left_ms = await turn.wait(timeout_ms)", "left_ms = timeout_ms", "tests/unit/test_turns.py"),
    Mutant("G6 a BLOB is written without a token", "stores/sqlite/guard/protection.py", "    if mode == ENFORCE:\n", "    if False:\n", "tests/rules/test_guard_blobs.py"),
    Mutant("G6 another resource's seal will do", _TABLE_SQL, "WHERE seal.resource = {resource} AND NOT mark.is_closed\n)\nBEGIN\n    SELECT RAISE", "WHERE NOT mark.is_closed\n)\nBEGIN\n    SELECT RAISE", _ENFORCED),
    Mutant("H5 a refusal after a lost reply", "_flows/retry.py", "if doubts and isinstance(reply, Busy)", "if False and isinstance(reply, Busy)", _FLOWS),
    Mutant("G2 a mark that fell is passed over", _GUARDING, "        elif verdict is Verdict.RAISE:\n            # It was", "        elif False:\n            # It was", "tests/unit/test_guard_flows.py"),
)  # fmt: skip


def trials() -> list[Trial]:
    """Return the whole list; raise ValueError for a line that does not occur exactly once in its file."""
    return [_trial(mutant) for mutant in MUTANTS]


def _trial(mutant: Mutant) -> Trial:
    text = (PACKAGE / mutant.file).read_text()
    if text.count(mutant.old) != 1:
        raise ValueError(f"{mutant.rule}: {mutant.old!r} stands {text.count(mutant.old)} times in {mutant.file}")
    return Trial(mutant.rule, mutant.file, text.replace(mutant.old, mutant.new), (mutant.tests,))
