# usage: FIXED=... sh refute.sh SEED BUILT_MUTANT...  FIXED: the prefix that TSan needs (see Makefile).
#   Each mutant must be refuted: its driver must end with a finding within some tries.
seed=$1
shift
log=build/refute.log
tries=10 seconds=4

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

# Prints how long it took and what was found; fails if the mutant survives all tries.
refute() {
    name=$(dirname "${1#build/mutants/}")
    began=$(milliseconds)
    for try in $(seq $tries); do
        $FIXED "$1" $((seed + try)) $seconds >"$log" 2>&1
        status=$?
        [ $status = 0 ] && continue
        found=$(grep -m1 "FINDING\|data race" "$log" || echo "it ended with status $status")
        printf 'mutant     %-43s refuted after %5d ms: %.80s\n' "$name" $(($(milliseconds) - began)) "${found#FINDING: }"
        return 0
    done
    echo "mutant     $name SURVIVED $tries runs of $seconds s, seeds from $((seed + 1)) on"
    return 1
}

failed=0
for mutant; do
    refute "$mutant" || failed=1
done
exit $failed
