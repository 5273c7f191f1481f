# usage: sh refute.sh SEED BUILT_MUTANT...  Each mutant must be refuted by its fuzzer within the time, from the corpus on.
seed=$1 seconds=60
shift
failed=0
for mutant; do
    name=$(dirname "${mutant#build/mutants/}")
    began=$(date +%s%N)
    if output=$(sh fuzz.sh "$mutant" "$(dirname "$name")" "$seed" $seconds); then
        echo "mutant     $name SURVIVED $seconds s, seed $seed"
        failed=1
    else
        found=$(echo "$output" | grep -m1 'FINDING\|ERROR: \|runtime error' | sed 's/FINDING: //; s/^.*ERROR: //; s/^.*runtime error: //')
        printf 'mutant     %-48s refuted after %5d ms: %.76s\n' "$name" $((($(date +%s%N) - began) / 1000000)) "$found"
    fi
done
exit $failed
