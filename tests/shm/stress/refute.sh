# usage: FIXED=... sh refute.sh SEED MUTANT  FIXED: the prefix that TSan needs (see Makefile).
#   The mutant must be refuted: its driver must end with a finding within some tries. Prints how long it took, and what was
#   found; fails if the mutant survives all tries.
seed=$1 name=$2
tries=10 seconds=4
run=build/mutants/$name/run

milliseconds() { echo $(($(date +%s%N) / 1000000)); }

began=$(milliseconds)
for try in $(seq $tries); do
    $FIXED "$run" $((seed + try)) $seconds >"$run.log" 2>&1
    status=$?
    [ $status = 0 ] && continue
    found=$(grep -m1 "FINDING\|data race" "$run.log")
    case "$found/$status" in
        /134 | /135 | /136 | /139) found="it ended with status $status" ;; # a signal of its own fault
        /*) echo "mutant     $name did not run: status $status, $(head -c 200 "$run.log")"; exit 1 ;;
    esac
    printf 'mutant     %-43s refuted after %5d ms: %.80s\n' "$name" $(($(milliseconds) - began)) "${found#FINDING: }"
    echo "proof: mutant $name refuted"
    exit 0
done
echo "mutant     $name SURVIVED $tries runs of $seconds s, seeds from $((seed + 1)) on"
exit 1
