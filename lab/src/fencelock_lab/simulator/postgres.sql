-- name: create_schema
-- This schema marks a database as one for simulations.
CREATE SCHEMA simulated;

-- name: create_draw
-- Counts the values that production draws at random, so that a seed replays exactly.
CREATE SEQUENCE simulated.draw;

-- name: create_now_us
-- The source's clock: the simulator sets it before each statement.
CREATE OR REPLACE FUNCTION fencelock.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT current_setting('simulated.now_us')::bigint $$;

-- name: create_calendar
-- The clock by which histories are ordered (T7). In the world they begin hours apart, and a simulation has no time for that:
-- here the calendar advances by a minute in each microsecond. Where it is wrong, it is before the first year that counts.
CREATE FUNCTION simulated.calendar() RETURNS timestamptz LANGUAGE sql VOLATILE AS
$$
    SELECT to_timestamp(CASE WHEN year_s > 0 THEN year_s + 60 * (fencelock.now_us() - start_us) ELSE 0 END)
    FROM (SELECT current_setting('simulated.calendar_s')::bigint, current_setting('simulated.start_us')::bigint)
        AS world (year_s, start_us)
$$;

-- name: create_draw_id
-- Draws an id that this world has not drawn before.
CREATE FUNCTION simulated.draw_id() RETURNS uuid LANGUAGE sql VOLATILE AS
$$ SELECT md5(nextval('simulated.draw')::text)::uuid $$;

-- name: create_save
-- The source's whole state, and whether its history was unbroken in it.
CREATE FUNCTION simulated.save() RETURNS jsonb LANGUAGE sql VOLATILE AS
$$
    SELECT jsonb_build_object(
        'source', (SELECT to_jsonb(s) FROM fencelock.source AS s),
        'witness', (SELECT to_jsonb(w) FROM fencelock.witness AS w),
        'is_whole', EXISTS (SELECT FROM fencelock.source AS s, fencelock.witness AS w WHERE s.xmin = s.xid AND w.xmin = w.xid),
        'locks', (SELECT jsonb_agg(l) FROM fencelock.lock AS l),
        'waiters', (SELECT jsonb_agg(q ORDER BY q.ticket) FROM fencelock.waiter AS q),
        'audit', (SELECT jsonb_agg(a ORDER BY a.id) FROM fencelock.source_audit AS a),
        'token', (SELECT jsonb_build_array(last_value, is_called) FROM fencelock.token),
        'ticket', (SELECT jsonb_build_array(last_value, is_called) FROM fencelock.waiter_ticket_seq),
        'entry', (SELECT jsonb_build_array(last_value, is_called) FROM fencelock.source_audit_id_seq))
$$;

-- name: create_load
-- Put a state in the place of the present one. A server that has recovered ('recovered') has no witness; out of a dump
-- ('dump') all rows come with other transactions than those that are written in them; a stopped server's folder ('cold')
-- is as it was.
CREATE FUNCTION simulated.load(p_state jsonb, p_how text) RETURNS void LANGUAGE plpgsql AS
$$
DECLARE
    is_cold boolean := p_how = 'cold' AND (p_state ->> 'is_whole')::boolean;
    own     jsonb := jsonb_build_object('xid', pg_current_xact_id()::xid);
BEGIN
    DELETE FROM fencelock.witness;
    DELETE FROM fencelock.waiter;
    DELETE FROM fencelock.lock;
    DELETE FROM fencelock.source_audit;
    DELETE FROM fencelock.source;
    INSERT INTO fencelock.source SELECT * FROM jsonb_populate_record(
        NULL::fencelock.source, (p_state -> 'source') || CASE WHEN p_how = 'dump' THEN '{}' ELSE own END);
    IF is_cold OR (p_how = 'dump' AND p_state -> 'witness' <> 'null') THEN
        INSERT INTO fencelock.witness SELECT * FROM jsonb_populate_record(
            NULL::fencelock.witness, (p_state -> 'witness') || CASE WHEN is_cold THEN own ELSE '{}' END);
    END IF;
    INSERT INTO fencelock.lock
    SELECT * FROM jsonb_populate_recordset(NULL::fencelock.lock, nullif(p_state -> 'locks', 'null'));
    INSERT INTO fencelock.waiter OVERRIDING SYSTEM VALUE
    SELECT * FROM jsonb_populate_recordset(NULL::fencelock.waiter, nullif(p_state -> 'waiters', 'null'));
    INSERT INTO fencelock.source_audit OVERRIDING SYSTEM VALUE
    SELECT * FROM jsonb_populate_recordset(NULL::fencelock.source_audit, nullif(p_state -> 'audit', 'null'));
    PERFORM setval('fencelock.token', (p_state #>> '{token,0}')::bigint, (p_state #>> '{token,1}')::boolean),
            setval('fencelock.waiter_ticket_seq', (p_state #>> '{ticket,0}')::bigint, (p_state #>> '{ticket,1}')::boolean),
            setval('fencelock.source_audit_id_seq', (p_state #>> '{entry,0}')::bigint, (p_state #>> '{entry,1}')::boolean);
END
$$;

-- name: draw_first_ids
-- Every database of simulations begins alike.
UPDATE fencelock.source SET source_id = 'simulated', history_id = 'first', xid = pg_current_xact_id()::xid;

-- name: begin_session
-- Settings as a new session has them.
RESET ALL;

-- name: begin_world
-- A source that nobody has used, and when that is on its clock and by its calendar.
SELECT setval('simulated.draw', 1), set_config('simulated.start_us', %s, false), set_config('simulated.now_us', %s, false),
       set_config('simulated.calendar_s', %s, false), simulated.load(%s::jsonb, 'cold');

-- name: save
-- The whole state.
SELECT simulated.save()::text;

-- name: load
-- Replaces the present state by a saved one.
SELECT simulated.load(%s::jsonb, %s);

-- name: tell_time
-- Runs before each statement, in its transaction.
SELECT set_config('simulated.now_us', %s, false);

-- name: tell_outcome
-- Runs after each statement, in its transaction: whether it has changed anything, and whether the commit flushes it.
SELECT pg_current_xact_id_if_assigned() IS NOT NULL, current_setting('synchronous_commit') <> 'off';
