# shardctl's guard: resumes the aliases that shardctl pauses on this pooler, unless it is
# disarmed in time. It needs nothing of shardctl's: a POSIX shell, coreutils, setsid, awk, psql.
#
#   arm     makes the guard's directory and starts `watch` in it, as a process of its own
#   watch   counts, then fires; only SIGKILL ends it before its time
#   disarm  ends it and removes the directory, or shows what it has done
#
# Its state is the name of one file, and only renaming changes it: so that disarming and
# firing exclude each other, and a full disk stops neither of them.
#
#   waiting -> armed -> fired -> done | failed
#         \        \        \--> asking -> fired | done
#          \        \--> disarmed
#           \----------> disarmed

export PGCONNECT_TIMEOUT=5
# A secret does not belong into the environment of a process that stays (use ~/.pgpass), and
# the rest make psql send things that a console does not understand.
unset PGPASSWORD PGOPTIONS PGSERVICE PGTARGETSESSIONATTRS

LACKING=71 TAKEN=72 CONSOLE=73 PLACE=75 BUSY=76
ANSWER_S=3 LOGIN_S=10 SESSION_S=30 GIVE_UP_S=600 AT_ONCE_S=0.01 SERVED_S=1 ASK_AGAIN_S=1
NO_ANSWER=1 SOME_PAUSED=2
FIELD=$(printf '\037') PROBE="shardctl guard"

say() {
    printf '%s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%S.%3NZ)" "$1"
}

console() { # seconds; commands by standard input
    timeout -s KILL "$1" psql -X -w -q -A -F "$FIELD" -P footer=off -d "$console"
}

## arm

# stdin: the aliases, one a line; $script: this text
# directory, owner, seconds, number of aliases, console, dsn, query, file, target, retry
arm() {
    directory=$1 owner=$2 after=$3 count=$4 console=$5
    dsn=$6 query=$7 file=$8 target=$9 retry=${10}
    require_programs
    require_admin
    umask 077
    said=$(mkdir -- "$directory" 2>&1) || refuse_place
    trap abandon EXIT
    trap 'exit 1' HUP INT TERM
    cd "$directory" || exit 1
    # shellcheck disable=SC2154 # the sender has set this variable
    printf '%s' "$script" | cat >guard.sh && printf '%s' "$owner" >owner && cat >aliases || exit 1
    export after console dsn query file target retry
    # Truncated, by a full disk or a lost line, it would resume fewer than are paused.
    [ "$(wc -l <aliases)" -eq "$count" ] || refuse "$PLACE" "the list of aliases arrived incomplete"
    : >waiting
    setsid sh "$directory/guard.sh" watch </dev/null >>log 2>&1 &
    polls=0
    while [ -e waiting ]; do
        polls=$((polls + 1))
        if [ "$polls" -gt 250 ] || ! kill -0 $! 2>/dev/null; then
            refuse "$PLACE" "it did not start: $(tail -n 3 log)"
        fi
        sleep 0.02
    done
    trap - EXIT
    echo armed
}

require_programs() {
    for program in setsid timeout psql awk; do
        command -v "$program" >/dev/null || refuse "$LACKING" "this host lacks $program"
    done
    sleep 0.01 || refuse "$LACKING" "this host's sleep does not support fractions of a second"
}

# RESUME of an unused name harms nothing and is answered otherwise to an administrator
# than to other users. (SHOW CONFIG would not do: not only admin_users makes administrators.)
require_admin() {
    said=$(printf 'RESUME "%s";\n' "$PROBE" | console "$LOGIN_S" 2>&1)
    code=$?
    case $said in
    *"no such database: $PROBE"* | *"database $PROBE is not paused"*) return ;;
    esac
    [ "$code" -ne 137 ] || said="the console did not answer within $LOGIN_S s"
    refuse "$CONSOLE" "${said:-psql exited with code $code and no output}"
}

refuse_place() {
    [ -d "$directory" ] || refuse "$PLACE" "$said"
    state=$(cd "$directory" && ls -d waiting armed fired asking 'done' failed disarmed 2>/dev/null)
    refuse "$TAKEN" "a guard of this name exists ($state)"
}

# What was begun and not armed goes again.
abandon() {
    code=$?
    mv waiting disarmed 2>/dev/null || mv armed disarmed 2>/dev/null
    end_processes_in .
    rm -rf -- "$directory"
    exit "$code"
}

## watch

# Standard output is the log. Once it is armed, all that it needs is in memory: what is not in the
# file of aliases is in its environment, from `arm`.
watch() {
    trap '' HUP INT QUIT TERM
    echo $$ >pid && aliases=$(cat aliases) || exit 1
    # RESUME without a name would resume what other sessions have paused.
    # shellcheck disable=SC2154
    resumes=$(printf '%s\n' "$aliases" | awk '
        $0 != "" { gsub(/"/, "\"\""); print "RESUME \"" $0 "\";" }')
    say "armed: fires in $after s unless it is disarmed"
    mv waiting armed || exit 1
    sleep "$after"
    # Without either file the directory was removed: no command has disarmed it.
    mv armed fired 2>/dev/null || [ ! -e disarmed ] || exit 0
    say "fires: it was not disarmed within $after s"
    fire
}

fire() {
    reload= asks=
    if [ -n "$file" ]; then
        if [ -z "$dsn" ] || answer; then
            replace
        else
            [ "$code" -ne 137 ] || say "the database did not answer within $ANSWER_S s"
            say "the answer is not true: $target is not replaced"
            asks=yes
        fi
    fi
    serve
    [ -z "$asks" ] || ask_on
    mv fired 'done'
}

# What is decided may reach the database later, when no shardctl runs that could carry it out. No alias
# is paused meanwhile. A guard whose directory was removed could not be disarmed any more, and ends.
ask_on() {
    mv fired asking || exit 1
    since=$(uptime)
    until answer 2>/dev/null; do
        if [ $(($(uptime) - since)) -ge "$GIVE_UP_S" ]; then
            say "the answer was not true for $GIVE_UP_S s: asks no more"
            mv asking 'done'
            exit
        fi
        sleep "$ASK_AGAIN_S"
        [ -e asking ] || exit 0
    done
    mv asking fired || exit 0
    replace
    serve
}

replace() {
    [ -z "$dsn" ] || say "the answer is true: $file becomes $target"
    place
    reload='RELOAD;'
}

# Resume all aliases, and reload first if that is to do.
serve() {
    since=$(uptime)
    while :; do
        said=$(resume)
        code=$?
        [ "$code" -ne 0 ] || break
        # The whole session was answered, so the reload was; it serves no client while it lasts.
        [ "$code" -ne "$SOME_PAUSED" ] || reload=
        say "$said"
        if [ $(($(uptime) - since)) -ge "$GIVE_UP_S" ]; then
            say "gives up: some aliases may still be paused"
            mv fired failed
            exit 1
        fi
        sleep 0.5
    done
    say "$said"
    restore
}

# A login between RELOAD and RESUME lets PgBouncer take the node for one that fails, and psql sends
# one command after the other. So PgBouncer tries again at once what failed, until all are served.
retry_at_once() {
    [ -z "$retry" ] || printf 'SET server_login_retry = %s;\n' "'$AT_ONCE_S'"
}

restore() {
    [ -n "$retry" ] || return 0
    sleep "$SERVED_S"
    said=$(printf 'SET server_login_retry = %s;\n' "'$retry'" | console "$LOGIN_S" 2>&1) ||
        said="psql ended with code $?"
    [ -z "$said" ] || say "server_login_retry remains $AT_ONCE_S until the next RELOAD: $said"
}

answer() {
    said=$(PGCONNECT_TIMEOUT=2 timeout -s KILL "$ANSWER_S" \
        psql -X -w -q -A -t -d "$dsn" -c "$query")
    code=$?
    [ "$code" -eq 0 ] && [ "$said" = t ]
}

place() {
    if [ ! -e "$file" ]; then
        say "$file does not exist: another process has moved it"
    else
        # What a link leads to is replaced, as shardctl does it.
        mv -fT -- "$file" "$(readlink -f -- "$target")" || say "$file: could not be moved"
    fi
}

# One session: reload if that is to do, resume, and ask for the proof that none is paused. An
# error in between (an alias that is not paused, or unknown) does not end it.
resume() {
    {
        printf '%s\n' "$aliases" "$FIELD"
        printf '%s\n' "$reload" "$(retry_at_once)" "$resumes" 'SHOW DATABASES;' |
            console "$SESSION_S" 2>&1
    } | awk -F "$FIELD" -v no_answer="$NO_ANSWER" -v some_paused="$SOME_PAUSED" '
        !listed { # the aliases, a line each, and a line with an end
            if (NF > 1) listed = 1
            else if ($0 != "") { ours[$0] = 1; all++ }
            next
        }
        NF == 1 { # what psql has to tell
            if (/ is not paused$/) idle++
            else if (/no such database: /) unknown++
            else if (++others <= 5) print
        }
        NF > 1 && !header {
            for (i = NF; i > 0; i--) column[$i] = i
            header = ("name" in column) && ("paused" in column)
            next
        }
        NF > 1 && ($column["name"] in ours) && $column["paused"] == 1 { left++ }
        END {
            if (!header) {
                print "no answer from the console; tries again"
                exit no_answer
            }
            if (left) {
                printf "%d of %d aliases are still paused; tries again\n", left, all
                exit some_paused
            }
            printf "resumed: of %d aliases none is paused (%d were not, %d unknown)\n", \
                all, idle, unknown
        }'
}

## disarm

# Prints what had become of it and whether it had fired, then its log.
disarm() { # directory, owner or nothing, seconds to wait for one that fires
    directory=$1 owner=$2 patience=$3
    if [ ! -d "$directory" ]; then
        [ -x "${directory%/*}/" ] || refuse "$PLACE" "${directory%/*}: cannot be entered (permissions)"
        echo absent
        exit
    fi
    cd "$directory" || exit "$PLACE"
    if [ -n "$owner" ] && [ "$(cat owner 2>/dev/null)" != "$owner" ]; then
        echo absent
        exit
    fi
    became=
    until=$(($(uptime) + patience))
    while [ -z "$became" ]; do
        settle
    done
    [ "$became" != busy ] || refuse "$BUSY" "it has fired and is still running: $(tail -n 1 log)"
    end_processes_in . || refuse "$PLACE" "its processes do not end: $alive"
    log=$(cat log 2>/dev/null)
    cd /
    rm -rf -- "$directory" || exit "$PLACE"
    printf '%s\n' "$became" "$log"
}

settle() {
    alive=$(processes_in .) # before the files: one that ends meanwhile has left its word there
    if mv waiting disarmed 2>/dev/null || mv armed disarmed 2>/dev/null; then
        if [ -n "$alive" ]; then became=disarmed; else became=died; fi
    elif mv asking 'done' 2>/dev/null || [ -e 'done' ]; then
        became='fired fired'
    elif [ -e failed ]; then
        became='failed fired'
    elif [ -e disarmed ]; then
        became=disarmed
    elif [ -z "$alive" ]; then
        if [ -e fired ]; then became='died fired'; else became=died; fi
    elif [ "$(uptime)" -ge "$until" ]; then
        became=busy
    else
        sleep 0.05
    fi
}

"$@"
