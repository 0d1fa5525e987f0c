package manifests

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tranche-dev/tranche/pkg/contract"
)

// pages are all Markdown files of the repository by path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		found[path] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	// notInAnchors is what GitHub drops from a heading to make its anchor.
	notInAnchors = regexp.MustCompile(`[^a-z0-9 _-]`)
)

func anchors(page string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(notInAnchors.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

func TestLinksBetweenPagesWork(t *testing.T) {
	all := pages(t)
	for path, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, anchored := strings.Cut(m[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", path, m[1])
			}
			if anchored && !slices.Contains(anchors(all[target]), anchor) {
				t.Errorf("%s links to %s, which has no such heading", path, m[1])
			}
		}
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	page := pages(t)[filepath.Join(root, "docs", "reference", "annotations.md")]
	for _, key := range []string{
		contract.InjectLabel, contract.QueueLabel, contract.DefaultFractionAnnotation, contract.FractionAnnotation,
		contract.MemoryAnnotation, contract.CountAnnotation, contract.ContainerAnnotation, contract.ModelAnnotation,
		contract.PlacementAnnotation, contract.IsolationAnnotation, contract.InventoryAnnotation, contract.NodeLabel,
		contract.PlanAnnotation, contract.RetryAnnotation, contract.GangLabel, contract.GangMinCountAnnotation, contract.AdmissionGate,
	} {
		if !strings.Contains(page, "`"+key+"`") {
			t.Errorf("%s is not in the reference", key)
		}
	}
}
