// SPDX-License-Identifier: Apache-2.0

// Command modelgen generates the models of an OVSDB schema like libovsdb's command of that
// name. Copies of these models share equal strings: their package has a function intern.
// libovsdb's cache holds copies.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"text/template"

	"github.com/ovn-kubernetes/libovsdb/modelgen"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// interned replaces the template's hook in DeepCopyInto, after the fields are copied.
const interned = `{{ define "deepCopyExtraFields" }}
	{{- range index . "Fields" }}
	{{- $type := FieldType "" .Column .Schema }}
	{{- if and (eq $type "string") (ne .Column "_uuid") }}
	b.{{ FieldName .Column }} = intern(b.{{ FieldName .Column }})
	{{- else if eq $type "map[string]string" }}
	internMap(b.{{ FieldName .Column }})
	{{- end }}
	{{- end }}
{{- end }}`

func main() {
	dir := flag.String("o", ".", "the directory of the generated files")
	pkg := flag.String("p", "", "their package")
	flag.Parse()
	if err := generate(*dir, *pkg, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "modelgen:", err)
		os.Exit(1)
	}
}

func generate(dir, pkg, schema string) error {
	if pkg == "" || schema == "" {
		return errors.New("use -p PACKAGE and the file of an OVSDB schema")
	}
	text, err := os.ReadFile(schema)
	if err != nil {
		return fmt.Errorf("read the schema: %w", err)
	}
	var db ovsdb.DatabaseSchema
	if err := json.Unmarshal(text, &db); err != nil {
		return fmt.Errorf("parse %s: %w", schema, err)
	}
	gen, err := modelgen.NewGenerator()
	if err != nil {
		return fmt.Errorf("create a generator: %w", err)
	}
	tmpl, err := template.Must(modelgen.NewTableTemplate().Clone()).Parse(interned)
	if err != nil {
		return fmt.Errorf("parse the template: %w", err)
	}
	for name, table := range db.Tables {
		data := modelgen.GetTableTemplateData(pkg, name, &table)
		data.WithExtendedGen(true)
		if err := gen.Generate(filepath.Join(dir, modelgen.FileName(name)), tmpl, data); err != nil {
			return fmt.Errorf("generate the model of %s: %w", name, err)
		}
	}
	if err := gen.Generate(filepath.Join(dir, "model.go"), modelgen.NewDBTemplate(), modelgen.GetDBTemplateData(pkg, db)); err != nil {
		return fmt.Errorf("generate the model of the database: %w", err)
	}
	return nil
}
