package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// need is something that must be on the machine, and the Debian package that
// brings it.
type need struct {
	what, debian string
	present      func(context.Context) bool
}

func program(name string) func(context.Context) bool {
	return func(context.Context) bool {
		_, err := exec.LookPath(name)
		return err == nil
	}
}

// buildNeeds are for runc, the one program here that is partly C.
func buildNeeds() []need {
	return []need{
		{what: "a C compiler (gcc)", debian: "gcc libc6-dev", present: program("gcc")},
		{what: "pkg-config", debian: "pkg-config", present: program("pkg-config")},
		{what: "libseccomp's headers", debian: "libseccomp-dev", present: func(ctx context.Context) bool {
			return exec.CommandContext(ctx, "pkg-config", "--exists", "libseccomp").Run() == nil
		}},
	}
}

// runNeeds are for the real node.
func runNeeds() []need {
	return []need{{what: "iproute2's ip", debian: "iproute2", present: program("ip")}}
}

func installBuildTools(ctx context.Context, say *progress) error {
	return install(ctx, say, buildNeeds())
}

// install gets what is missing with apt, or says what to install.
func install(ctx context.Context, say *progress, needs []need) error {
	var missing, packages []string
	for _, n := range needs {
		if !n.present(ctx) {
			missing, packages = append(missing, n.what), append(packages, strings.Fields(n.debian)...)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	lack := fmt.Sprintf("the real node needs %s", strings.Join(missing, ", "))
	if !program("apt-get")(ctx) || !isRoot() {
		return fmt.Errorf("%s (Debian's packages are %s); install that, or do without the real node: REAL_NODE=0", lack, strings.Join(packages, " "))
	}
	say.say("%s: installing %s with apt-get", lack, strings.Join(packages, " "))
	if err := apt(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...); err != nil {
		// The package lists may be missing or old: fetch them once.
		if err := apt(ctx, "update"); err != nil {
			return fmt.Errorf("%s: %w", lack, err)
		}
		if err := apt(ctx, append([]string{"install", "--yes", "--no-install-recommends"}, packages...)...); err != nil {
			return fmt.Errorf("%s: %w", lack, err)
		}
	}
	for _, n := range needs {
		if !n.present(ctx) {
			return errors.New(lack + ": apt-get installed the packages, but " + n.what + " is still not found")
		}
	}
	return nil
}

func apt(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"-qq"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}
