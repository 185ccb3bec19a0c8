"""Every key that Phoenix uses, built here and nowhere else, named as an operator types them."""

from __future__ import annotations

import hashlib

JOB_PREFIX = "saq:job:"
TOKENS = "phoenix:token"
"""The last fencing token that was given out: max(last + 1, the server's microseconds), for all records."""

PAUSED = "phoenix:paused"
"""A set of lanes and tasks that take no jobs for now."""

PAUSED_PREFIX = "paused:"
"""Before a task's name: the circuit, so to speak, that holds its jobs while it is paused (claim.lua)."""

TASKS = "phoenix:tasks"
"""A set of the tasks that workers here have ever had: whose dead letters and quarantine there may be."""

CIRCUITS = "phoenix:circuits"
"""A set of the circuits that were ever used, for listing them."""

USER_CIRCUITS = "phoenix:circuits:users"
"""The same of circuits of single users, which are as many as there are users with trouble."""

HELD_CIRCUITS = "phoenix:circuits:held"
"""A sorted set of the circuits that do not let everything through, scored with the milliseconds from which a probe is
worth it; infinite while one is forced open."""

PROBES = "phoenix:probes"
"""A hash, token -> circuit, of the runs that probe a circuit: their permits are renewed with their leases."""

USER_PROBES = "phoenix:probes:users"
"""The same of circuits of single users: a run may probe its user's circuit and its provider's."""

FAR_FUTURE = 4_102_444_800
"""Unix seconds (2100-01-01): the due time of a job that something else than the clock will release."""


LONGEST_USER = 256
"""Bytes of a user's id that stands in keys as it is."""

HASHED = "sha256:"

BILLING_CIRCUIT = "billing"
"""The billing service's own."""


def user_name(user: str) -> str:
    """A user's id as keys, circuits and the catalogue have it: itself, or its hash where it is long or no text.

    No two users share a name: an id that looks like such a hash is hashed as well.
    """
    raw = user.encode("utf-8", "surrogatepass")
    if len(raw) > LONGEST_USER or user.startswith(HASHED) or "\0" in user or not _is_text(user):
        return HASHED + hashlib.sha256(raw).hexdigest()
    return user


def _is_text(user: str) -> bool:
    try:
        user.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def api_key_key(user: str) -> str:
    """`api_key:user:<user id>`: the user's key, until it is a day old. The one place where keys are."""
    return f"api_key:user:{user_name(user)}"


def api_key_lock_key(user: str) -> str:
    """`phoenix:api-key-lock:<user id>`: who has a key made for the user now; it ends by itself."""
    return f"phoenix:api-key-lock:{user_name(user)}"


def user_circuit(provider: str, user: str) -> str:
    """`<provider>:user:<user id>`: the circuit of one user's key at one provider."""
    return f"{provider}:user:{user_name(user)}"


def circuits_key(circuit: str) -> str:
    """The set in which a circuit is listed."""
    return USER_CIRCUITS if ":user:" in circuit else CIRCUITS


def job_prefix(queue: str) -> str:
    """`saq:job:<queue>:`: what stands before a job's key in its id."""
    return f"{JOB_PREFIX}{queue}:"


def queued_key(queue: str) -> str:
    """`saq:<queue>:queued`: a list of job ids, the next one first."""
    return f"saq:{queue}:queued"


def active_key(queue: str) -> str:
    """`saq:<queue>:active`: a sorted set of job ids, scored with the end of each lease in milliseconds.

    A plain SAQ worker wants a list here: the server refuses to hand it a job, and its sweep cannot run. The member
    `guard`, with an infinite score, keeps it from being empty, which would be no key at all.
    """
    return f"saq:{queue}:active"


def incomplete_key(queue: str) -> str:
    """`saq:<queue>:incomplete`: a sorted set of all unsettled job ids; 0, or the second at which one is due."""
    return f"saq:{queue}:incomplete"


def lock_key(service: str, record_id: str) -> str:
    """`lock:<service>:<record_id>`: who runs the record now, until when, with which token. JSON."""
    return f"lock:{service}:{record_id}"


def marker_key(service: str, record_id: str) -> str:
    """`processed:<service>:<record_id>`: the version that was recorded last, and its result. JSON."""
    return f"processed:{service}:{record_id}"


def ended_key(token: str) -> str:
    """`phoenix:ended:<token>`: that a run came to an end that left no marker; kept for minutes."""
    return f"phoenix:ended:{token}"


def dead_letters_key(service: str) -> str:
    """`phoenix:<service>:dlq`: a list of JSON entries, the oldest first."""
    return f"phoenix:{service}:dlq"


def quarantine_key(service: str) -> str:
    """`phoenix:<service>:quarantine`: a list of JSON entries, the oldest first."""
    return f"phoenix:{service}:quarantine"


def stream_key(service: str) -> str:
    """`phoenix:<service>:input`: the stream on which producers of any language ask for a service's work."""
    return f"phoenix:{service}:input"


def group_name(service: str) -> str:
    """`<service>-group`: the consumer group in which a stream's bridges share its entries."""
    return f"{service}-group"


def entries_key(service: str) -> str:
    """`phoenix:<service>:entries`: a hash, record id -> `version entry,entry queue`: for which of the stream's entries
    the record's unsettled job answers, and on which queue it is."""
    return f"phoenix:{service}:entries"


def pages_key(record_id: str) -> str:
    """`pages:<record_id>`: a JSON list, the pages of a document, from its router's settle to its parser's."""
    return f"pages:{record_id}"


def pages_version_key(record_id: str) -> str:
    """`phoenix:pages-of:<record_id>`: for which version of the next stage's entry the pages were left."""
    return f"phoenix:pages-of:{record_id}"


def progress_channel(record_id: str) -> str:
    """`phoenix:progress:<record_id>`: a channel; JSON of what becomes of a record while it becomes so."""
    return f"phoenix:progress:{record_id}"


def parked_key(circuit: str) -> str:
    """`phoenix:parked:<circuit>`: a list of job ids that wait for a circuit, or for a pause to end, oldest first."""
    return f"phoenix:parked:{circuit}"


def parked_index_key(queue: str) -> str:
    """`phoenix:parked-on:<queue>`: a set of the circuits that hold jobs of this queue."""
    return f"phoenix:parked-on:{queue}"


def let_go_key(queue: str) -> str:
    """`phoenix:let-go:<queue>`: a set of `<bytes of the circuit>:<circuit><job id>`, of jobs that were let go to probe
    a circuit and wait for a worker since."""
    return f"phoenix:let-go:{queue}"


def deaths_key(queue: str) -> str:
    """`phoenix:deaths:<queue>`: a hash, job id -> `takeovers:own deaths`, of jobs whose worker or child died.

    Its field `turn` holds the lock's key of the one among them that may run while none of its kind does.
    """
    return f"phoenix:deaths:{queue}"


def aborts_key(queue: str) -> str:
    """`phoenix:aborts:<queue>`: a set of the ids of running jobs that someone wants to end."""
    return f"phoenix:aborts:{queue}"


def counters_key(queue: str) -> str:
    """`phoenix:counters:<queue>`: a hash of counts since ever: stale settles, takeovers, vanished payloads."""
    return f"phoenix:counters:{queue}"


def breaker_key(circuit: str) -> str:
    """`phoenix:breaker:<circuit>`: a hash with the circuit's state."""
    return f"phoenix:breaker:{circuit}"


def permits_key(circuit: str) -> str:
    """`phoenix:permits:<circuit>`: a sorted set, owner -> end of its probe's permit in milliseconds."""
    return f"phoenix:permits:{circuit}"
