# usage: sh fuzz.sh BINARY FUZZER SEED LIMIT [MOST]: runs a fuzzer from its corpus on until LIMIT (-runs=INPUTS or
# -max_total_time=SECONDS) and prints one line, or two for a number of inputs, of which the second is the same for a seed on every
# machine. A finding is left beside the binary, and printed in a form that can be pasted. An input that takes MOST seconds (10) is
# one, too.
binary=$1 fuzzer=$2 seed=$3 limit=$4 most=${5:-10}
log=$binary.log

rm -rf "$binary".corpus
python3 corpus.py unpack corpora/"$fuzzer".txt "$binary".corpus
# used by messages.py only
export FUZZ_SEGMENTS=pagetier-fuzz-$$ PYTHONDONTWRITEBYTECODE=1
if [ "$fuzzer" = messages ]; then export ASAN_OPTIONS=detect_leaks=0; fi
PYTHONPATH=$PWD/$(dirname "$binary")/rooms:$PWD
export PYTHONPATH

"$binary" -seed="$seed" "$limit" -timeout="$most" -max_len=400 -len_control=0 -rss_limit_mb=2000 \
    -artifact_prefix="$binary"- -print_final_stats=1 "$binary".corpus >"$log" 2>&1
status=$?
rm -f /dev/shm/"$FUZZ_SEGMENTS".*
runs=$(sed -n 's/^stat::number_of_executed_units: //p' "$log")
covered=$(grep -o 'cov: [0-9]*' "$log" | tail -1)
if [ $status = 0 ]; then
    printf 'fuzzed     %-10s seed %-10s %s inputs, %s, no findings\n' "$fuzzer" "$seed" "$runs" "$covered"
    # Without the coverage: two machines found other numbers for one seed.
    case $limit in -runs=*) echo "proof: $fuzzer, $runs inputs, no findings" ;; esac
    exit 0
fi
echo "fuzzed     $fuzzer seed $seed: after $runs inputs:"
grep -m4 'FINDING\|ERROR: \|runtime error\|^Base64' "$log"
grep -m8 '^ *#[0-9]* .*\(core\|fuzz\|stress\)/[a-z_]*\.[ch]' "$log"
exit 1
