package ui

// question is what a form asks before it does something that is hard to undo.
type question struct {
	Title, Text string
	// Path gets the form again, with the same Fields and the field confirm.
	Path   string
	Fields []formField
	// Button does it, and Back is the page for people who decide against it.
	Button, Back string
}

type formField struct{ Name, Value string }

// confirmed reports whether the person has answered the question of this form.
func (v *visit) confirmed() bool { return v.form("confirm") == "yes" }

func (v *visit) ask(q *question) error { return v.render("confirm", q.Title, q) }
