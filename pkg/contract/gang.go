package contract

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// MaxGangMinCount is the largest minCount of a gang; the Gang kind allows no
// more either.
const MaxGangMinCount = 100000

// maxGangName is what a label's value may have, so no gang is named longer.
const maxGangName = validation.LabelValueMaxLength

// Gang objects that the system made carry this label, beside those that people
// made, which lack it or have another value.
const (
	ManagedByLabel   = "app.kubernetes.io/managed-by"
	ManagedByTranche = "tranche"
)

// ErrGang is what every error of ParseGang and GangOf is.
var ErrGang = errors.New("gang")

// A Declarer is what can declare a gang: a pod, or the object that owns it.
type Declarer interface {
	GetLabels() map[string]string
	GetAnnotations() map[string]string
}

// ParseGang reads the gang that o's label and annotation declare. The empty
// name means that o is in no gang; minCount 0, that o does not say how many
// members make it whole: a Gang object may. Errors satisfy errors.Is(err,
// ErrGang), and their text after "gang: " is a sentence that says what to write.
func ParseGang(o Declarer) (name string, minCount int32, err error) {
	name, declared, err := gangName(o.GetLabels())
	if err != nil {
		return "", 0, err
	}
	text, sized := o.GetAnnotations()[GangMinCountAnnotation]
	if !sized {
		return name, 0, nil
	}
	if !declared {
		return "", 0, fmt.Errorf("%w: annotation %s says how large a gang is, but no label names the gang; add the label %s with a name that all members have, or remove the annotation",
			ErrGang, GangMinCountAnnotation, GangLabel)
	}
	if minCount, err = parseMinCount(text); err != nil {
		return "", 0, err
	}
	return name, minCount, nil
}

// GangOf reads the gang that a pod is in: the one of its label, else the native
// group (native is then true) that its spec names. A pod in a native group may
// have the annotation without the label; its minCount then counts where the
// PodGroup itself has none.
func GangOf(pod *corev1.Pod) (name string, minCount int32, native bool, err error) {
	_, labelled := pod.Labels[GangLabel]
	group := NativeGroup(pod)
	if labelled || group == "" {
		name, minCount, err = ParseGang(pod)
		return name, minCount, false, err
	}
	if len(group) > maxGangName {
		return "", 0, false, fmt.Errorf("%w: spec.schedulingGroup names the PodGroup %q, whose name has %d characters; gangs have at most %d, so give the PodGroup a shorter name",
			ErrGang, group, len(group), maxGangName)
	}
	if text, sized := pod.Annotations[GangMinCountAnnotation]; sized {
		if minCount, err = parseMinCount(text); err != nil {
			return "", 0, false, err
		}
	}
	return group, minCount, true, nil
}

// NativeGroup is the name of the PodGroup (scheduling.k8s.io) that the pod's
// spec names, empty if it names none or the API server does not know the field.
func NativeGroup(pod *corev1.Pod) string {
	if g := pod.Spec.SchedulingGroup; g != nil && g.PodGroupName != nil {
		return *g.PodGroupName
	}
	return ""
}

// gangName reads the label; declared says whether it is there.
func gangName(labels map[string]string) (name string, declared bool, err error) {
	name, declared = labels[GangLabel]
	switch {
	case !declared:
		return "", false, nil
	case name == "":
		return "", false, fmt.Errorf("%w: label %s is empty; write the name of the gang, or remove the label", ErrGang, GangLabel)
	case len(name) > maxGangName:
		// The API server refuses such a label, too, but not before us.
		return "", false, fmt.Errorf("%w: label %s has %d characters; write a name of at most %d", ErrGang, GangLabel, len(name), maxGangName)
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", false, fmt.Errorf("%w: label %s is %q, which cannot name a Gang object; write a name of lower-case letters, digits, - and . that begins and ends with a letter or digit, such as \"training-1\"",
			ErrGang, GangLabel, name)
	}
	return name, true, nil
}

// parseMinCount reads a whole number written plainly: what strconv would also
// take, such as "+4" or "04", is refused, so that one number has one spelling.
func parseMinCount(text string) (int32, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 || n > MaxGangMinCount || strconv.FormatInt(n, 10) != text {
		return 0, fmt.Errorf("%w: annotation %s is %s; write a whole number from 1 to %d, such as \"4\"",
			ErrGang, GangMinCountAnnotation, quoteShort(text), MaxGangMinCount)
	}
	return int32(n), nil
}

// quoteShort quotes a user's text, cut if it is long: annotations may have
// 256 KiB, and a refusal is shown in events.
func quoteShort(text string) string {
	const most = 40
	if len(text) <= most {
		return strconv.Quote(text)
	}
	return strconv.Quote(strings.ToValidUTF8(text[:most], "")) + "…"
}
