# Proof from inside.
run_verify() { fail "$SURPRISE" 'verify is not built yet'; }
