package jobs

import "github.com/oncegate/oncegate/manager/internal/store"

// leastPage and mostPage bound how many jobs functionsWithJobs reads at a time.
const leastPage, mostPage = 64, 4096

// functionsWithJobs lists, by name, the functions after `after` that have jobs; at most limit if that is positive. Where
// functions have few jobs it reads those of many functions at a time. Where they have many it skips from one function
// to the next.
func functionsWithJobs(tx store.Tx, after string, limit int) ([]string, error) {
	from := ""
	if after != "" {
		from = afterFunction(after)
	}
	var names []string
	for page := leastPage; ; {
		hits, err := tx.Scan(colJobs, idxFunction, store.Range{From: from, Limit: page})
		if err != nil {
			return names, err
		}
		before := len(names)
		for _, h := range hits {
			name := functionOf(h.SortKey)
			if len(names) > 0 && names[len(names)-1] == name {
				continue
			}
			if names = append(names, name); len(names) == limit {
				return names, nil
			}
		}
		if len(hits) < page {
			return names, nil
		}
		from = afterFunction(names[len(names)-1])
		if found := len(names) - before; found >= 4 {
			page = min(2*page, mostPage)
		} else {
			page = max(page/2, leastPage)
		}
	}
}
