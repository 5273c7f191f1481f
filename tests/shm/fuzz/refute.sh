# usage: sh refute.sh SEED MUTANT  The mutant must be refuted by its fuzzer within the time, from the corpus on.
seed=$1 name=$2 seconds=60 most=5
began=$(date +%s%N)
if output=$(sh fuzz.sh "build/mutants/$name/run" "$(dirname "$name")" "$seed" -max_total_time=$seconds $most); then
    echo "mutant     $name SURVIVED $seconds s, seed $seed"
    exit 1
fi
found=$(echo "$output" | grep -m1 'FINDING\|ERROR: \|runtime error' | sed 's/FINDING: //; s/^.*ERROR: //; s/^.*runtime error: //')
if [ -z "$found" ]; then
    echo "mutant     $name did not run: $output"
    exit 1
fi
printf 'mutant     %-48s refuted after %5d ms: %.76s\n' "$name" $((($(date +%s%N) - began) / 1000000)) "$found"
echo "proof: mutant $name refuted"
