package objectwriter

import (
	"cmp"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxConditionMessage is Kubernetes' limit for a condition's message, in
// characters.
const MaxConditionMessage = 32768

// SetCondition puts c among conditions, as the API server takes it. It keeps the
// time of a condition whose status stays the same.
func SetCondition(conditions *[]metav1.Condition, c metav1.Condition, now time.Time) {
	c.Reason = cmp.Or(c.Reason, c.Type) // which the API demands
	c.Message = Shorten(c.Message, MaxConditionMessage)
	if c.LastTransitionTime.IsZero() {
		c.LastTransitionTime = metav1.NewTime(now)
	}
	// What is read again has no fractions of seconds.
	c.LastTransitionTime = c.LastTransitionTime.Rfc3339Copy()
	meta.SetStatusCondition(conditions, c)
}

// Shorten cuts text to most characters.
func Shorten(text string, most int) string {
	if utf8.RuneCountInString(text) <= most {
		return text
	}
	return string([]rune(text)[:most-1]) + "…"
}
