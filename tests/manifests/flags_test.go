package manifests

import (
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/tranche-dev/tranche/extender"
	"github.com/tranche-dev/tranche/nodeplugin"
	"github.com/tranche-dev/tranche/pkg/program"
	"github.com/tranche-dev/tranche/webhook"
)

// The chart and the programs are written apart; here they meet.
func TestProgramsAcceptTheArgumentsThatTheChartGives(t *testing.T) {
	for name, values := range variants {
		t.Run(name, func(t *testing.T) {
			for _, tmpl := range templates(render(t, values...)) {
				options := map[string]program.Options{
					"tranche-extender":   extender.NewOptions(),
					"tranche-webhook":    webhook.DefaultOptions(),
					"tranche-nodeplugin": nodeplugin.NewOptions(),
				}[tmpl.owner]
				flags := pflag.NewFlagSet(tmpl.owner, pflag.ContinueOnError)
				flags.IntP("verbosity", "v", 0, "that of every program")
				options.AddFlags(flags)
				c := tmpl.Spec.Containers[0]
				env := map[string]string{}
				for _, e := range c.Env {
					if e.ValueFrom != nil {
						env[e.Name] = "name-of-" + strings.ToLower(strings.TrimSuffix(e.Name, "_NAME"))
					}
				}
				args := make([]string, 0, len(c.Args))
				for _, a := range c.Args {
					args = append(args, os.Expand(parentheses.Replace(a), func(key string) string {
						if _, ok := env[key]; !ok {
							t.Errorf("%s: argument %q refers to a variable that the container does not have", tmpl.owner, a)
						}
						return env[key]
					}))
				}
				if err := flags.Parse(args); err != nil {
					t.Errorf("%s: %v", tmpl.owner, err)
					continue
				}
				if err := options.Validate(); err != nil {
					t.Errorf("%s: %v", tmpl.owner, err)
				}
			}
		})
	}
}

// parentheses turns Kubernetes' $(NAME) into a shell's ${NAME}.
var parentheses = strings.NewReplacer("$(", "${", ")", "}")
