// Package program is the common frame of Tranche's daemons: flags, a
// configuration file, logging, signals and exit codes.
package program

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"
)

// version is set at link time by the Makefile.
var version = ""

// Version names this build: the release, or the commit it was built from.
func Version() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}

// Options are a program's settings.
type Options interface {
	// AddFlags declares one flag per setting, with its default and unit.
	AddFlags(fs *pflag.FlagSet)
	// Validate reports every problem at once, with errors.Join.
	Validate() error
}

// Program describes one daemon.
type Program struct {
	// Name is the binary's name, Short and Long its help.
	Name, Short, Long string
	Options           Options
	// Run works until ctx ends, and waits for whatever it started.
	Run func(ctx context.Context) error
}

// Main parses args, runs p until SIGINT or SIGTERM, and returns the exit code:
// 0 after a signal or success, 1 after a failure, 2 for wrong usage. A second
// signal ends the process at once.
func Main(p Program, args []string, stderr io.Writer) int {
	code := 0
	cmd := command(p, stderr, &code)
	cmd.SetArgs(args)
	cmd.SetErr(stderr)
	if err := cmd.Execute(); err != nil {
		fmt.Fprintf(stderr, "%s: %v\nRun '%s --help' for usage.\n", p.Name, err, p.Name)
		return 2
	}
	return code
}

func command(p Program, stderr io.Writer, code *int) *cobra.Command {
	var config string
	var verbosity int
	cmd := &cobra.Command{
		Use: p.Name, Short: p.Short, Long: p.Long, Version: Version(),
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
	}
	fs := cmd.Flags()
	fs.StringVar(&config, "config", "", "YAML file whose keys are these flags' names; flags on the command line win")
	fs.IntVarP(&verbosity, "verbosity", "v", 0, "log level: 0 what an operator acts on, 2 each decision, 4 per node, 6 dumps")
	p.Options.AddFlags(fs)
	cmd.RunE = func(*cobra.Command, []string) error {
		if config != "" {
			if err := applyConfigFile(fs, config); err != nil {
				return err
			}
		}
		if err := p.Options.Validate(); err != nil {
			return err
		}
		log := setUpLogging(stderr, verbosity)
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		context.AfterFunc(ctx, stop) // the next signal kills
		ctx = klog.NewContext(ctx, log)
		log.Info("Starting", append([]any{"program", p.Name, "version", Version()}, settings(fs)...)...)
		if err := p.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			log.Error(err, "Stopped")
			*code = 1
			return nil
		}
		log.Info("Stopped")
		return nil
	}
	return cmd
}

// applyConfigFile sets every flag that the file names and the command line
// does not.
func applyConfigFile(fs *pflag.FlagSet, path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("configuration file: %w", err)
	}
	values := map[string]any{}
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return fmt.Errorf("configuration file %s: %w", path, err)
	}
	var problems []error
	for key, value := range values {
		f := fs.Lookup(key)
		if f == nil || key == "config" {
			problems = append(problems, fmt.Errorf("configuration file %s: %q is not a setting; the settings are the flags that --help lists", path, key))
			continue
		}
		if f.Changed {
			continue
		}
		if err := fs.Set(key, flagText(value)); err != nil {
			problems = append(problems, fmt.Errorf("configuration file %s: %w", path, err))
		}
	}
	return errors.Join(problems...)
}

func flagText(value any) string {
	list, ok := value.([]any)
	if !ok {
		return fmt.Sprint(value)
	}
	texts := make([]string, 0, len(list))
	for _, v := range list {
		texts = append(texts, fmt.Sprint(v))
	}
	return strings.Join(texts, ",")
}

// settings lists the effective values for the first log line.
func settings(fs *pflag.FlagSet) []any {
	var kv []any
	fs.VisitAll(func(f *pflag.Flag) {
		if !slices.Contains([]string{"help", "version", "config"}, f.Name) {
			kv = append(kv, f.Name, f.Value.String())
		}
	})
	return kv
}

// setUpLogging makes JSON lines on stderr, for our code, klog (client-go) and
// controller-runtime alike.
func setUpLogging(w io.Writer, verbosity int) logr.Logger {
	// logr's V(n) is slog's level -n.
	handler := slog.NewJSONHandler(w, &slog.HandlerOptions{Level: slog.Level(-verbosity)})
	log := logr.FromSlogHandler(handler)
	slog.SetDefault(slog.New(handler)) // and the standard library's, such as net/http's TLS errors
	klog.SetLogger(log)
	ctrllog.SetLogger(log)
	return log
}
