#!/bin/sh
# A visit to a card in some nine minutes: every line is a process of its own with a limit, and its figures are on the
# disk as they come. A second call with the same folder goes on with what was not finished; each visit has its own.
#   benchmarks/gpus/visit.sh first OUT       what is there: kernels, steps, feed, tests
#   benchmarks/gpus/visit.sh second OUT      times to a target, cuda:0 by its name, sizes that were never run
#   DEVICE=cpu benchmarks/gpus/visit.sh ...  rehearses both at toy sizes, with ten times the limits
# The left atrium has to lie in ../shared/data or build/atrium (benchmarks/gpus/atrium.py).
set -u
which=$1 out=$2
python=${PYTHON:-python} device=${DEVICE:-cuda}
quick='' slow=1
[ "$device" = cpu ] && quick='--quick' slow=10
cd "$(dirname "$0")/../.." || exit 1
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$out"

run() {  # LIMIT COMMAND...
    limit=$(($1 * slow))
    shift
    echo "== at most $limit s: $*"
    timeout -k 5 "$limit" "$@" || echo "-- ended with $?: $*"
}

part() {  # NAME SECONDS
    run $(($2 + 8)) "$python" -m benchmarks.gpu --out "$out" --budget $(($2 * slow)) --parts "$1" --device "$device" $quick
}

checked() {  # LIMIT TEST...
    limit=$1
    shift
    run "$limit" "$python" -m pytest -q -m gpu -p no:cacheprovider "$@"
}

case $which in
first)
    part card 25
    checked 45 tests/gpu/test_few_channels.py
    if command -v compute-sanitizer > /dev/null; then
        run 40 compute-sanitizer --tool memcheck --error-exitcode 9 "$python" -m pytest -q -m gpu -p no:cacheprovider \
            tests/gpu/test_few_channels.py -k captured
    fi
    part steps 60
    part kernels 40
    part feed 75
    part profile 30
    part target 110
    part tests 110
    ;;
second)
    checked 60 tests/gpu/test_capture.py tests/gpu/test_fused.py tests/gpu/test_run.py
    run 10 "$python" -m hasten phantom --out "$out/phantoms"
    name=$device
    [ "$device" = cuda ] && name=cuda:0
    run 45 "$python" -m hasten train "$out/phantoms" --out "$out/by_name" "train.device=$name" train.steps=300
    part atrium 180
    part feed 50
    part sliding 30
    part fill 30
    part target 120
    ;;
*)
    echo "first or second, then a folder for the results" >&2
    exit 2
    ;;
esac
